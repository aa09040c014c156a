"""Whom a rule leaves out, on records made by hand."""

import pytest

from wardround.records import ClientRecord
from wardround.runs.suppression import suppressed_shares, suppressed_to_a_tenth


def record(client, weight, samples, **more):
    return ClientRecord(1, client, num_samples=samples, weight=weight, **more)


def test_the_limit_is_a_tenth_of_what_fedavg_would_give():
    told = [record("a", 0.081, 800), record("b", 0.019, 200), record("c", 0.9, 0), record("d", None, 50)]
    assert suppressed_to_a_tenth(told) == [False, True, None, None]
    assert suppressed_to_a_tenth([record("a", 0.0799, 800), record("b", 0.9201, 200)]) == [True, False]


def test_fedavg_suppresses_nobody_however_small():
    told = [record("a", 0.999, 999), record("b", 0.001, 1)]
    assert suppressed_shares(told, {"a": [999, 0], "b": [0, 1]}) == {
        "suppressed_clients": 0.0,
        "suppressed_patients": 0.0,
        "suppressed_outcome": 0.0,
    }


def test_the_rare_outcome_counts_most():
    told = [record("a", 0.5, 60), record("b", 0.5, 30), record("c", 0.0, 10)]
    shares = suppressed_shares(told, {"a": [60, 0], "b": [28, 2], "c": [2, 8]})
    assert shares["suppressed_clients"] == pytest.approx(1 / 3)
    assert shares["suppressed_patients"] == pytest.approx(0.1)
    assert shares["suppressed_outcome"] == pytest.approx(0.8)


def test_attackers_are_not_counted():
    told = [record("a", 1.0, 50), record("x", 0.0, 50, byzantine=True, attacking=True)]
    assert set(suppressed_shares(told, {"a": [25, 25], "x": [25, 25]}).values()) == {0.0}


def test_a_rule_without_weights_has_no_share():
    shares = suppressed_shares([record("a", None, 50)], {"a": [25, 25]})
    assert set(shares.values()) == {None}


def test_rounds_are_weighed_by_those_who_took_part():
    told = [record("a", 1.0, 10), ClientRecord(2, "a", num_samples=10, weight=0.04),
            ClientRecord(2, "b", num_samples=10, weight=0.96)]  # fmt: skip
    assert suppressed_to_a_tenth(told) == [False, True, False]
