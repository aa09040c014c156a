"""Splits by unit, and rows of a mapped tensor that read like a tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround import datasets
from wardround.datasets.base import Dataset, MappedRows, Split, Task, check_classes, split_units
from wardround.errors import DataError
from wardround.randomness import numpy_generator


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(0, 3))
def test_no_unit_in_two_splits_and_every_row_in_one(units, seed):
    parts = split_units(units, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(units)))
    owners = [{units[row] for row in part} for part in parts]
    assert not owners[0] & owners[1]
    assert not owners[0] & owners[2]
    assert not owners[1] & owners[2]
    again = split_units(units, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_shares_are_seventy_ten_twenty():
    assert [len(part) for part in split_units(np.arange(1000), 0)] == [700, 100, 200]


def test_mapped_rows_read_like_the_tensor_of_the_rows():
    stored = torch.randn(20, 2, 3)
    rows = torch.tensor([3, 17, 5, 5, 0])
    mapped, plain = MappedRows(stored, rows), stored[rows]
    for index in (0, slice(1, 4), torch.tensor([4, 1]), np.array([2, 0]), torch.tensor([[0, 1], [2, 3]])):
        assert torch.equal(mapped[index], plain[index])
    assert (len(mapped), mapped.shape, mapped.ndim, mapped.dtype) == (5, plain.shape, 3, plain.dtype)
    assert torch.equal(torch.cat(list(mapped.split(2))), plain)
    assert torch.equal(mapped.to(torch.float64), plain.double())
    assert mapped.is_floating_point()
    assert mapped.device == plain.device


def test_changing_a_clone_leaves_what_is_stored():
    stored = torch.zeros(4, 2)
    mapped = MappedRows(stored, torch.arange(4))
    mapped.clone()[:] = 1
    assert not stored.any()
    version = mapped._version
    stored.add_(1)
    assert mapped._version == version + 1


def test_a_class_that_training_never_sees_is_named():
    part = Split(torch.zeros(3, 1), torch.tensor([0, 1, 0]))
    assert check_classes(Dataset("d", Task.BINARY, ("a", "b"), part, part, part)).name == "d"
    with pytest.raises(DataError, match="no training sample of 'c' among 3"):
        check_classes(Dataset("d", Task.MULTICLASS, ("a", "b", "c"), part, part, part))


@pytest.mark.parametrize("name", datasets.available())
def test_every_dataset_says_what_it_is(name):
    member = datasets.registry.get(name)
    assert member.summary
    assert member.licence
    assert member.origin
    assert member.task in tuple(datasets.Task)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=300), st.integers(0, 3)
)
def test_a_stratified_split_gives_each_part_its_share_of_every_class(rows, seed):
    class_of_unit = dict(rows)
    units = [unit for unit, _ in rows]
    classes = np.array([class_of_unit[unit] for unit in units])
    parts = split_units(units, seed, strata=classes)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(rows)))
    for label in set(class_of_unit.values()):
        own = {unit for unit in class_of_unit if class_of_unit[unit] == label}
        in_part = [len(own & {units[row] for row in part}) for part in parts]
        assert sum(in_part) == len(own)  # no unit is in two parts
        assert in_part == pytest.approx([0.7 * len(own), 0.1 * len(own), 0.2 * len(own)], abs=1.01)


def test_a_split_without_classes_is_the_one_that_earlier_runs_had():
    order = numpy_generator(0, "split").permutation(8)
    train, validation, test = split_units(np.arange(8), 0, shares=(0.5, 0.25, 0.25))
    assert train.tolist() == sorted(order[:4].tolist())
    assert validation.tolist() == sorted(order[4:6].tolist())
    assert test.tolist() == sorted(order[6:].tolist())
