"""Measures of single clients."""

import pytest

from wardround.analysis import load_runs, measure_all
from wardround.analysis.clients import distance_from_the_rest, minority_clients
from wardround.runs.digest import shares_of_weight, variation


def test_single_clients(make_run):
    held = {"a": [90, 10], "b": [90, 10], "c": [10, 90], "d": [85, 15]}
    make_run(held=held, weights=lambda c, n: {"a": 0.4, "b": 0.3, "c": 0.1, "d": 0.2}[c])
    (run,) = load_runs([make_run.root])
    assert minority_clients(run) == ["c"]
    (m,) = measure_all([run])
    assert m["minority_share"] == pytest.approx(0.4), "0.1 of an equal share of 0.25"
    assert m["worst_client_auroc"] == pytest.approx(0.6)
    assert m["mean_client_auroc"] == pytest.approx(0.75)
    assert shares_of_weight(run.clients)["a"] == pytest.approx(1.6)


def test_a_minority_is_never_byzantine(make_run):
    make_run(attack="sign-flip", held={"a": [0, 100], "b": [90, 10], "c": [80, 20], "d": [99, 1]})
    (run,) = load_runs([make_run.root])
    assert run.byzantine == ["a"]
    assert minority_clients(run) == ["d"]


def test_distance_is_total_variation():
    values = distance_from_the_rest({"a": [30, 10, 0], "b": [0, 20, 0], "c": [10, 10, 20]})
    pooled = [0.4, 0.4, 0.2]
    assert values["a"] == pytest.approx((0.35 + 0.15 + 0.2) / 2)
    assert values["b"] == pytest.approx(sum(abs(x - y) for x, y in zip([0, 1, 0], pooled, strict=True)) / 2)


def test_variation_of_scores_and_thresholds(make_run):
    make_run()
    (m,) = measure_all(load_runs([make_run.root]))
    assert m["score_variation"] == pytest.approx(0.5 / 1.5), "scores go 2, 1, 2, 1: sd 0.5, mean 1.5"
    assert m["threshold_variation"] == 0.0
    assert variation([], "score") is None
