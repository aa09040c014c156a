"""Ranks by hand; the critical difference of Demšar's paper."""

import numpy as np
import pytest
from scipy import stats

from wardround.analysis import load_runs
from wardround.analysis.ranking import FEWEST_BLOCKS, Ranking, critical_difference, rank_methods


def test_critical_values_are_demsars():
    # Table 5(a) of the paper: q at 5 % for k = 2 … 10.
    for k, q in zip(
        range(2, 11), (1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164), strict=True
    ):
        assert critical_difference(k, 10) == pytest.approx(q * np.sqrt(k * (k + 1) / 60), abs=0.002)


def test_mean_ranks_and_friedman(make_run):
    rng = np.random.default_rng(0)
    table = rng.random((FEWEST_BLOCKS, 3)) * 0.2 + np.array([0.5, 0.6, 0.61])
    for seed, row in enumerate(table):
        for method, value in zip(("a", "b", "c"), row, strict=True):
            make_run(method, seed=seed, auroc=float(value), rounds=6)
    ranking = rank_methods(load_runs([make_run.root]))
    expected = stats.rankdata(-table, axis=1).mean(0)
    assert dict(zip(ranking.methods, ranking.mean_ranks, strict=True)) == pytest.approx(
        dict(zip("abc", expected, strict=True))
    )
    assert list(ranking.mean_ranks) == sorted(ranking.mean_ranks)
    assert ranking.friedman_p == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)
    assert ranking.critical_difference == pytest.approx(critical_difference(3, FEWEST_BLOCKS))
    assert ranking.why_not is None


def test_too_few_blocks_get_ranks_but_no_test(make_run):
    for method in "abc":
        make_run(method, rounds=6)
    ranking = rank_methods(load_runs([make_run.root]))
    assert ranking.friedman_p is ranking.critical_difference is None
    assert "1 blocks" in ranking.why_not
    assert ranking.cliques == []


def test_a_rare_method_does_not_cost_the_others_their_blocks(make_run):
    for seed in range(3):
        for method in ("a", "b"):
            make_run(method, seed=seed, rounds=6)
    make_run("rare", seed=0, rounds=6)
    ranking = rank_methods(load_runs([make_run.root]))
    assert set(ranking.methods) == {"a", "b"}
    assert ranking.blocks == 3
    assert rank_methods(load_runs([make_run.root])[:1]) is None


def test_cliques_are_the_largest_groups_within_the_critical_difference():
    ranking = Ranking(("a", "b", "c", "d"), (1.0, 1.8, 2.4, 4.0), 12, 0.01, 1.5, None)
    assert ranking.cliques == [("a", "b", "c")]
    ranking = Ranking(("a", "b", "c"), (1.0, 2.0, 3.0), 12, 0.01, 1.5, None)
    assert ranking.cliques == [("a", "b"), ("b", "c")]
