"""Benign drift on any table: where features move, how class mixes move, and what cannot move."""

import itertools

import numpy as np
import pytest
import torch

from wardround import datasets
from wardround.datasets import partition
from wardround.datasets.base import Dataset, Split, Task
from wardround.datasets.drift import DriftParams, FeatureShift, LabelShift, drift_space, with_drift
from wardround.errors import ConfigError, WardroundWarning

CLIENT = "hospital-01"


def params(**values):
    return DriftParams(**{"clients": [CLIENT], "start": 10, "ramp": 20, "feature_shift": 2.0, **values})


def table(task=Task.BINARY, rows=400, classes=2):
    """Two columns that tell classes apart, four that do not, and two one-hot columns; scales differ widely."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, classes, rows)
    signal = targets[:, None] * np.array([3.0, -2.0]) + rng.standard_normal((rows, 2))
    noise = rng.standard_normal((rows, 4)) * np.array([1.0, 100.0, 0.01, 5.0])
    category = rng.integers(0, 2, (rows, 1))
    inputs = torch.from_numpy(np.concatenate([signal, noise, category, 1 - category], 1).astype(np.float32))
    labels = torch.from_numpy(targets)
    if task is Task.MULTILABEL:
        labels = torch.nn.functional.one_hot(labels, classes).float()
    split = Split(inputs, labels)
    return Dataset("made", task, tuple("abcd"[:classes]), split, split, split)


@pytest.mark.parametrize(("task", "classes"), [(Task.BINARY, 2), (Task.MULTICLASS, 3), (Task.MULTILABEL, 3)])
def test_features_move_by_so_many_deviations_and_class_means_keep_their_distance(task, classes):
    data = table(task, classes=classes)
    shift = FeatureShift(params(), drift_space(data), seed=3)
    inputs = data.train.inputs
    moved = shift(inputs, CLIENT, 100) - inputs
    deviations = inputs.std(0, correction=0)
    steps = (moved[0] / deviations)[:6]
    assert float(steps.norm()) == pytest.approx(2.0, rel=1e-4)
    assert torch.equal(moved[:, 6:], torch.zeros(len(inputs), 2)), "categories do not move"
    standardised = (inputs / deviations)[:, :6]
    groups = data.train.targets if task is not Task.MULTILABEL else data.train.targets.argmax(1)
    means = torch.stack([standardised[groups == c].mean(0) for c in range(classes)])
    for one in range(1, classes):
        apart = means[one] - means[0]
        assert abs(float(steps @ apart)) < 1e-3 * float(apart.norm()), "at right angles"


def test_it_is_slow_and_everybody_else_stays():
    data = table()
    shift = FeatureShift(params(), drift_space(data), seed=3)
    inputs = data.train.inputs
    for client, round in ((CLIENT, 1), (CLIENT, 10), ("hospital-00", 100)):
        assert torch.equal(shift(inputs, client, round), inputs)
    half, whole = (shift(inputs, CLIENT, round) - inputs for round in (20, 30))
    assert torch.allclose(2 * half, whole, rtol=1e-3, atol=1e-2)
    assert torch.equal(shift(inputs, CLIENT, 30), shift(inputs, CLIENT, 99))


def test_a_sample_moves_the_same_alone_or_in_a_batch():
    data = table()
    shift = FeatureShift(params(), drift_space(data), seed=3)
    together = shift(data.train.inputs, CLIENT, 25)
    assert torch.equal(shift(data.train.inputs[7:8], CLIENT, 25), together[7:8])


def test_the_real_icu_table_can_drift():
    data = datasets.create("icu").load(0)
    space = drift_space(data)
    names = np.array(data.feature_names)
    assert "age" in names[space.scale > 0]
    assert not any("sex" in name for name in names[space.scale > 0]), "a category"
    assert np.allclose(space.avoided @ space.avoided.T, np.eye(len(space.avoided)))


def test_the_class_mix_moves_with_the_clients_own_samples():
    shift = LabelShift(params(feature_shift=0.0, label_shift=0.6), seed=1)
    classes = np.array([0, 1] * 100)
    assert shift(classes, CLIENT, 10) is None
    assert shift(classes, "hospital-00", 99) is None
    rounds = [shift(classes, CLIENT, round) for round in (15, 20, 30, 80)]
    favoured = np.bincount(classes[rounds[-1]]).argmax()
    shares = [(classes[index] == favoured).mean() for index in rounds]
    assert 0.5 < shares[0] < shares[1] < shares[2] == shares[3]
    assert shares[2] == pytest.approx(0.5 + 0.5 * 0.6, abs=0.06)
    for before, after in itertools.pairwise(rounds):
        changed = before != np.arange(200)
        assert (after[changed] == before[changed]).all(), "who is replaced stays replaced"
    again = LabelShift(params(feature_shift=0.0, label_shift=0.6), seed=1)
    assert np.array_equal(again(classes, CLIENT, 20), rounds[1])
    assert not np.array_equal(LabelShift(shift.params, seed=2)(classes, CLIENT, 20), rounds[1])


def test_a_client_that_is_not_there_is_an_error():
    data = datasets.create("synthetic").load(0)
    dealt = partition.create("iid", clients=3).assign(data.train, data.test, 0)
    with pytest.raises(
        ConfigError, match=r"drift.clients: no client 'hospital-1'; did you mean 'hospital-01'"
    ):
        with_drift(data, dealt, params(clients=["hospital-1"]), 0)


def test_one_class_cannot_change_its_mix():
    data = table()
    rows = tuple(np.flatnonzero(data.train.targets.numpy() == c) for c in (0, 1))
    dealt = partition.Assignment(("hospital-00", CLIENT), rows, rows)
    with pytest.warns(WardroundWarning, match=f"{CLIENT} has samples of one class only"):
        with_drift(data, dealt, params(label_shift=0.5), 0)


def test_images_have_no_columns_to_move_but_a_class_mix():
    data = datasets.create("digits").load(0)
    dealt = partition.create("iid", clients=3).assign(data.train, data.test, 0)
    with pytest.raises(ConfigError, match=r"columns of a table.*use drift.label_shift"):
        with_drift(data, dealt, params(), 0)
    assert with_drift(data, dealt, params(feature_shift=0.0, label_shift=0.5), 0).resample is not None


def test_no_way_to_go_is_an_error():
    inputs = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    split = Split(inputs, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ConfigError, match="leave no way to move"):
        drift_space(Dataset("line", Task.BINARY, ("a", "b"), split, split, split))


def test_a_drift_that_moves_nothing_is_an_error():
    with pytest.raises(ValueError, match="nothing moves"):
        DriftParams(clients=["a"])
