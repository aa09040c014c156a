"""Partitions: everything exactly once, minimum sizes, the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.datasets import partition
from wardround.datasets.base import Split
from wardround.errors import ConfigError


def split_of(labels: np.ndarray | list[int], groups: list[str] | None = None) -> Split:
    targets = torch.as_tensor(np.asarray(labels))
    return Split(torch.zeros(len(targets), 1), targets, groups)


def rows_of(assignment: partition.Assignment, part: str = "train") -> list[int]:
    return sorted(np.concatenate(getattr(assignment, part)).tolist())


label_lists = st.lists(st.integers(0, 4), min_size=60, max_size=300)
kinds = st.sampled_from(
    [
        ("iid", {}),
        ("dirichlet", {"alpha": 0.05}),
        ("dirichlet", {"alpha": 1.0}),
        ("dirichlet", {"alpha": math.inf}),
        ("quantity-skew", {"size_sigma": 2.0}),
        ("similarity", {"gamma": 0.3}),
        ("similarity", {"gamma": 1.0}),
    ]
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    label_lists,
    kinds,
    st.integers(1, 8),
    st.integers(1, 6),
    st.sampled_from(["power-law", "lognormal"]),
    st.integers(0, 5),
)
def test_every_sample_once_and_no_client_below_the_minimum(labels, kind, clients, min_size, sizes, seed):
    name, params = kind
    made = partition.create(name, clients=clients, min_size=min_size, sizes=sizes, **params)
    train, test = split_of(labels), split_of(labels[::3])
    dealt = made.assign(train, test, seed)
    assert rows_of(dealt) == list(range(len(labels)))
    assert rows_of(dealt, "test") == list(range(len(labels[::3])))
    assert min(map(len, dealt.train)) >= min_size
    again = made.assign(train, test, seed)
    assert all(np.array_equal(a, b) for a, b in zip(dealt.train, again.train, strict=True))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(label_lists, st.integers(1, 8), st.integers(1, 5), st.integers(0, 5))
def test_label_skew_holds_at_most_q_classes(labels, clients, q, seed):
    made = partition.create("label-skew", clients=clients, classes=q, min_size=1)
    classes = len(set(labels))
    if q > classes or clients * q < classes:
        with pytest.raises(ConfigError, match="label-skew"):
            made.assign(split_of(labels), split_of([]), seed)
        return
    dealt = made.assign(split_of(labels), split_of([]), seed)
    assert rows_of(dealt) == list(range(len(labels)))
    assert min(map(len, dealt.train)) >= 1
    assert all(len(set(np.asarray(labels)[rows])) <= q for rows in dealt.train)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_whole_counts_finds_a_way_exactly_when_there_is_one(data):
    """Against brute force: Hall's condition for clients that must each get `least` samples."""
    clients, classes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    counts = np.array(data.draw(st.lists(st.integers(0, 6), min_size=classes, max_size=classes)))
    cells = data.draw(st.lists(st.booleans(), min_size=clients * classes, max_size=clients * classes))
    allowed = np.array(cells).reshape(clients, classes)
    allowed[0] |= ~allowed.any(0)  # every class has somebody who may hold it
    least = data.draw(st.integers(1, 4))
    groups = [[c for c in range(clients) if code >> c & 1] for code in range(1, 2**clients)]
    possible = all(counts[allowed[group].any(0)].sum() >= least * len(group) for group in groups)
    wish = np.where(
        allowed,
        np.array(data.draw(st.lists(st.floats(0.01, 9), min_size=len(cells), max_size=len(cells)))).reshape(
            allowed.shape
        ),
        0,
    )
    if not possible:
        with pytest.raises(ConfigError, match="no way"):
            partition.whole_counts(wish, allowed, counts, least)
        return
    whole = partition.whole_counts(wish, allowed, counts, least)
    assert (whole.sum(0) == counts).all()
    assert (whole.sum(1) >= least).all()
    assert not whole[~allowed].any()
    assert (whole >= 0).all()


def test_equal_sizes_are_equal_and_classes_in_proportion():
    labels = np.repeat([0, 1, 2], [101, 203, 299])
    dealt = partition.create("iid", clients=7).assign(split_of(labels), split_of(labels), 0)
    sizes = [len(rows) for rows in dealt.train]
    assert max(sizes) - min(sizes) <= 1
    shares = np.array([np.bincount(labels[rows], minlength=3) for rows in dealt.train])
    assert np.abs(shares - np.array([101, 203, 299]) / 7).max() <= 1


def test_small_alpha_skews_and_infinite_alpha_does_not():
    labels = np.repeat(np.arange(5), 200)

    def largest_share(alpha: float) -> float:
        made = partition.create("dirichlet", clients=10, alpha=alpha, sizes="equal")
        dealt = made.assign(split_of(labels), split_of(labels), 0)
        return float(np.mean([np.bincount(labels[r]).max() / len(r) for r in dealt.train]))

    assert largest_share(math.inf) == pytest.approx(0.2, abs=0.01)
    assert largest_share(0.05) > 0.7
    assert largest_share(100.0) < 0.3


def test_infinite_alpha_is_written_as_yaml_has_it():
    params = yaml.safe_load("{alpha: .inf, clients: 3}")
    assert partition.create("dirichlet", **params).params.alpha == math.inf
    with pytest.raises(ConfigError, match="alpha"):
        partition.create("dirichlet", alpha=math.nan)


def test_power_law_sizes_follow_the_law():
    dealt = partition.create("iid", clients=5, sizes="power-law", min_size=1).assign(
        split_of(np.zeros(2740, dtype=int)), split_of([]), 0
    )
    # (2740 − 5)/H_5 · 1/k + 1 with H_5 = 137/60
    expected = [1 + 2735 / (137 / 60) / k for k in range(1, 6)]
    assert sorted(map(len, dealt.train), reverse=True) == pytest.approx(expected, abs=1)


def test_quantity_skew_is_log_normal():
    dealt = partition.create("quantity-skew", clients=400, min_size=1, size_sigma=0.5).assign(
        split_of(np.zeros(400_000, dtype=int)), split_of([]), 0
    )
    logs = np.log([len(rows) for rows in dealt.train])
    assert logs.std() == pytest.approx(0.5, abs=0.06)


def test_natural_clients_are_the_groups():
    groups = ["north"] * 30 + ["south"] * 50 + ["north"] * 20
    train, test = split_of([0, 1] * 50, groups), split_of([0, 1, 0], ["south", "north", "south"])
    dealt = partition.create("natural").assign(train, test, 0)
    assert dealt.clients == ("north", "south")
    assert dealt.train[0].tolist() == [*range(30), *range(80, 100)]
    assert [rows.tolist() for rows in dealt.test] == [[1], [0, 2]]


def test_natural_groups_may_be_shared_out():
    train = split_of([0, 1] * 60, ["a"] * 40 + ["b"] * 80)
    made = partition.create("natural", clients_per_group=2, sizes="power-law", min_size=5)
    dealt = made.assign(train, split_of([0, 1, 1], ["a", "a", "b"]), 0)
    assert dealt.clients == ("a-0", "a-1", "b-0", "b-1")
    assert rows_of(dealt) == list(range(120))
    assert sorted(np.concatenate(dealt.train[:2]).tolist()) == list(range(40))
    assert rows_of(dealt, "test") == [0, 1, 2]


@pytest.mark.parametrize(
    ("params", "groups", "says"),
    [
        ({}, None, "no natural clients"),
        ({"min_size": 60}, ["a"] * 50 + ["b"] * 50, "'a' has 50 training samples"),
        ({"clients": 5}, ["a"] * 50 + ["b"] * 50, "2 groups"),
    ],
)
def test_natural_says_what_does_not_fit(params, groups, says):
    made = partition.create("natural", **params)
    with pytest.raises(ConfigError, match=says):
        made.assign(split_of([0, 1] * 50, groups), split_of([0], groups and ["a"]), 0)


def test_cross_validation_keeps_counts_and_changes_samples():
    labels = np.repeat([0, 1, 2], [100, 150, 250])
    folds = [
        partition.create("dirichlet", clients=10, alpha=0.5, cross_validation=5, fold=fold).assign(
            split_of(labels), split_of(labels), 3
        )
        for fold in range(5)
    ]
    plain = partition.create("dirichlet", clients=10, alpha=0.5).assign(split_of(labels), split_of(labels), 3)
    assert all(np.array_equal(a, b) for a, b in zip(plain.train, folds[0].train, strict=True))
    for dealt in folds:
        assert rows_of(dealt) == list(range(500))
        for rows, first in zip(dealt.train, folds[0].train, strict=True):
            assert (
                np.bincount(labels[rows], minlength=3).tolist()
                == np.bincount(labels[first], minlength=3).tolist()
            )
    # A client that holds no more than a fold of any class never sees a sample twice over the five.
    small = min(range(10), key=lambda c: len(folds[0].train[c]))
    seen = np.concatenate([dealt.train[small] for dealt in folds])
    assert len(set(seen.tolist())) == len(seen)


def test_fold_must_be_below_cross_validation():
    with pytest.raises(ConfigError, match="fold"):
        partition.create("iid", cross_validation=5, fold=5)
    with pytest.raises(ConfigError, match="fold"):
        partition.create("iid", fold=1)


def test_too_few_samples_is_an_error_that_counts():
    with pytest.raises(
        ConfigError, match="20 clients × min_size 10 need 200 training samples, the dataset has 30"
    ):
        partition.create("iid").assign(split_of([0, 1] * 15), split_of([]), 0)


def test_multi_label_samples_go_by_their_first_finding():
    targets = torch.tensor([[0, 0, 0], [0, 1, 1], [1, 0, 1]], dtype=torch.float32)
    assert partition.class_of(Split(torch.zeros(3, 1), targets)).tolist() == [3, 1, 0]


def test_the_same_on_every_platform():
    """Pinned: a change here changes every published experiment."""
    labels = np.arange(200) % 3
    dealt = partition.create("dirichlet", clients=4, alpha=0.3).assign(split_of(labels), split_of(labels), 7)
    pinned = [(len(rows), int(rows[0]), int(rows.sum())) for rows in dealt.train]
    assert pinned == PINNED


PINNED = [(87, 1, 8677), (36, 0, 3645), (48, 5, 4499), (29, 2, 3079)]


@pytest.mark.parametrize("gamma", [0.0, 0.25, 0.5, 1.0])
def test_similarity_is_a_share_alike_and_the_rest_sorted(gamma):
    labels = np.repeat(np.arange(10), 100)
    params = {"clients": 10, "gamma": gamma, "min_size": 1}
    dealt = partition.create("similarity", **params).assign(split_of(labels), split_of(labels[::10]), seed=0)
    for client, rows in enumerate(dealt.train):
        counts = np.bincount(labels[rows], minlength=10)
        assert len(rows) == 100
        assert abs(counts[client] - (100 * (1 - gamma) + 10 * gamma)) <= 1
        assert (np.abs(np.delete(counts, client) - 10 * gamma) <= 1).all()


def test_similarity_cuts_the_sorted_data_where_classes_do_not_fit():
    labels = np.repeat([0, 1], [300, 100])
    dealt = partition.create("similarity", clients=4, gamma=0.0, min_size=1).assign(
        split_of(labels), split_of(labels), seed=0
    )
    assert [np.bincount(labels[rows], minlength=2).tolist() for rows in dealt.train] == [[100, 0]] * 3 + [
        [0, 100]
    ]


@settings(deadline=None, max_examples=30)
@given(label_lists, kinds, st.integers(1, 5), st.integers(1, 4), st.integers(0, 5))
def test_the_last_clients_may_hold_copies_of_what_the_others_hold(labels, kind, holders, copies, seed):
    name, params = kind
    made = partition.create(name, clients=holders + copies, copies=copies, min_size=1, **params)
    train, test = split_of(labels), split_of(labels[::3])
    dealt = made.assign(train, test, seed)
    assert len(dealt.clients) == len(dealt.train) == len(dealt.test) == holders + copies
    for part, rows in (("train", len(labels)), ("test", len(labels[::3]))):
        pieces = getattr(dealt, part)
        assert sorted(np.concatenate(pieces[:holders]).tolist()) == list(range(rows)), "all data, once"
        for copy in pieces[holders:]:
            assert len(copy) == len(set(copy.tolist())) == rows // holders
    alone = partition.create(name, clients=holders, min_size=1, **params).assign(train, test, seed)
    assert all(np.array_equal(a, b) for a, b in zip(dealt.train[:holders], alone.train, strict=True))


def test_copies_are_drawn_from_all_classes_alike():
    labels = np.repeat(np.arange(4), 100)
    made = partition.create("similarity", gamma=0, clients=5, copies=1)
    *own, copy = made.assign(split_of(labels), split_of(labels), 0).train
    assert [len(set(labels[rows])) for rows in own] == [1, 1, 1, 1]
    assert np.bincount(labels[copy]).min() > 10


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("iid", {"clients": 3, "copies": 3}, "copies must be below clients.*got copies=3, clients=3"),
        ("natural", {"copies": 1}, "copies=1, but the data says who holds what"),
    ],
)
def test_copies_that_cannot_be(name, params, message):
    with pytest.raises(ConfigError, match=message):
        partition.create(name, **params)
