"""The generator and its drift."""

from __future__ import annotations

import pytest
import torch

from wardround import datasets
from wardround.errors import ConfigError

DRIFT = {"clients": ["hospital-03"], "size": 2.0, "start": 5, "ramp": 10}


def test_nothing_moves_before_the_start_nor_elsewhere():
    drift = datasets.create("synthetic", drift=DRIFT).load(0).drift
    samples = torch.randn(6, 20)
    for round in (1, 5):
        assert torch.equal(drift(samples, "hospital-03", round), samples)
    assert torch.equal(drift(samples, "hospital-04", 50), samples)


def test_the_way_is_slow_straight_and_ends():
    drift = datasets.create("synthetic", drift=DRIFT).load(0).drift
    samples = torch.randn(6, 20)
    shifts = [drift(samples, "hospital-03", round) - samples for round in (10, 15, 90)]
    assert shifts[0].norm(dim=1) == pytest.approx(1.0, abs=1e-5)  # half of the way of 2
    assert shifts[1].norm(dim=1) == pytest.approx(2.0, abs=1e-5)
    assert torch.allclose(shifts[1], shifts[2], atol=1e-6)
    assert torch.allclose(2 * shifts[0], shifts[1], atol=1e-5)


def test_drift_is_benign():
    """A classifier of the undrifted task keeps its ranking: the way is at right angles to what decides."""
    source = datasets.create("synthetic", samples=4000, separation=3.0, drift={**DRIFT, "size": 5.0})
    data = source.load(0)
    inputs, targets = data.train.inputs, data.train.targets
    direction = inputs[targets == 1].mean(0) - inputs[targets == 0].mean(0)
    moved = data.drift(inputs, "hospital-03", 100)
    away = (moved - inputs)[0]
    assert abs(float(torch.nn.functional.cosine_similarity(away, direction, dim=0))) < 0.12
    assert float(away.norm()) == pytest.approx(5.0, abs=1e-4)


def test_clients_have_ways_of_their_own_and_the_seed_decides_them():
    drift = {**DRIFT, "clients": ["hospital-00", "hospital-01"]}
    first = datasets.create("synthetic", drift=drift).load(0).drift
    again = datasets.create("synthetic", drift=drift).load(0).drift
    other = datasets.create("synthetic", drift=drift).load(1).drift
    samples = torch.zeros(1, 20)
    assert torch.equal(first(samples, "hospital-00", 30), again(samples, "hospital-00", 30))
    assert not torch.equal(first(samples, "hospital-00", 30), first(samples, "hospital-01", 30))
    assert not torch.equal(first(samples, "hospital-00", 30), other(samples, "hospital-00", 30))


def test_drift_does_not_change_the_data():
    still, moving = (datasets.create("synthetic", drift=drift).load(4) for drift in (None, DRIFT))
    assert still.drift is None
    assert torch.equal(still.train.inputs, moving.train.inputs)


def test_one_feature_leaves_no_way_to_go():
    with pytest.raises(ConfigError, match="at least 2 features"):
        datasets.create("synthetic", features=1, drift=DRIFT)
