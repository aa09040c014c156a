"""Our rules and pre-aggregations beside those of ByzFL, and of Flower, on random problems.

Every rule and pre-aggregation that ByzFL 0.0.11 has is here. Where the two differ by design, the test says how: Krum
counts one neighbour more there, Multi-Krum too; CAF and SMEA take one power step from a random start.
"""

import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from fast_cases import slow_but

from wardround import Updates, aggregators
from wardround.aggregators import preaggregation
from wardround.aggregators._math.neighbours import krum_order
from wardround.aggregators.preaggregation.base import PreContext

PROBLEMS = [(7, 1, 5), (11, 2, 30), (20, 4, 100), (21, 9, 17)]
"""N, f, D."""


def problem(n, f, d, seed=0):
    rng = np.random.default_rng([n, f, d, seed])
    rows = rng.normal(size=(n, d)) * rng.uniform(0.5, 2, size=(n, 1)) + 0.3
    rows[:f] += 4
    return rows


def ours(name, rows, pre=(), **params):
    return aggregators.create(name, **params, pre=list(pre)).aggregate(Updates(rows.copy())).delta.numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_coordinate_wise_rules(byzfl, n, f, d):
    for seed in range(3):
        rows = problem(n, f, d, seed)
        for name, params, theirs in [
            ("mean", {}, byzfl.rules.Average()),
            ("median", {}, byzfl.rules.Median()),
            ("trimmed-mean", {"f": f}, byzfl.rules.TrMean(f)),
            ("meamed", {"f": f}, byzfl.rules.Meamed(f)),
        ]:
            np.testing.assert_allclose(
                ours(name, rows, **params), theirs(rows), rtol=1e-9, atol=1e-11, err_msg=name
            )


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_geometric_median(byzfl, n, f, d):
    """To the end: both converge to the same point, from the mean here and from zero there."""
    rows = problem(n, f, d)
    exact = aggregators.create("rfa", tolerance=1e-12, iterations=5000).aggregate(Updates(rows)).delta.numpy()
    np.testing.assert_allclose(
        exact, byzfl.rules.GeometricMedian(nu=1e-6, T=5000)(rows), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_centered_clipping_over_rounds(byzfl, n, f, d):
    rule, theirs = (
        aggregators.create("centered-clipping", tau=3.0, iterations=2),
        byzfl.rules.CenteredClipping(L=2, tau=3.0),
    )
    for seed in range(3):
        rows = problem(n, f, d, seed)
        np.testing.assert_allclose(
            rule.aggregate(Updates(rows)).delta.numpy(), theirs(rows), rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS[:3])
def test_krum_differs_by_one_neighbour(byzfl, n, f, d):
    """Blanchard et al. sum over the N−f−2 nearest others; ByzFL over N−f−1. With its count the choice is the same."""
    for seed in range(3):
        rows = problem(n, f, d, seed)
        squared = torch.cdist(torch.from_numpy(rows), torch.from_numpy(rows)).square()
        order = krum_order(squared, f - 1)
        np.testing.assert_allclose(byzfl.rules.Krum(f)(rows), rows[order[0]])
        chosen = sorted(order[: n - f])
        np.testing.assert_allclose(byzfl.rules.MultiKrum(f)(rows), rows[chosen].mean(0), rtol=1e-9)
        own = aggregators.create("krum", f=f).aggregate(Updates(rows))
        assert int(own.weights.argmax()) == krum_order(squared, f)[0]


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_caf_is_no_worse_than_one_power_step(byzfl, n, f, d):
    """Not the same by design: exact eigenvectors give a result as near to the honest mean, or nearer."""
    np.random.seed(0)  # ByzFL draws its start from numpy's global state
    rows = problem(n, f, d)
    honest = rows[f:].mean(0)
    theirs = np.linalg.norm(byzfl.rules.CAF(f)(rows) - honest)
    assert np.linalg.norm(ours("caf", rows, f=f) - honest) <= 1.2 * theirs


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_nearest_neighbours_of_a_trusted_client(byzfl, n, f, d):
    rows = problem(n, f, d)
    for place in (0, n // 2, n - 1):
        theirs = byzfl.rules.MoNNA(f, place)(rows)
        np.testing.assert_allclose(ours("monna", rows, f=f, trusted=f"client-{place:02}"), theirs, rtol=1e-9)


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS[:2])
def test_minimum_diameter(byzfl, n, f, d):
    """The same mean, or one of the same diameter: of several smallest subsets ByzFL takes the first."""
    for seed in range(3):
        rows = problem(n, f, d, seed)
        distances = np.linalg.norm(rows[:, None] - rows, axis=2)
        means = {}
        for places in combinations(range(n), n - f):
            means.setdefault(distances[np.ix_(places, places)].max(), []).append(rows[list(places)].mean(0))
        least = means[min(means)]
        for mean in (byzfl.rules.MDA(f)(rows), ours("mda", rows, f=f)):
            assert any(np.allclose(mean, one, rtol=1e-9) for one in least)


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS[:2])
def test_smea_is_theirs_with_exact_eigenvalues(byzfl, monkeypatch, n, f, d):
    """With a start along the top eigenvector, ByzFL's one power step gives the exact eigenvalue."""
    rows = problem(n, f, d)
    subsets = iter(combinations(range(n), n - f))

    def top_direction(dimension):
        own = rows[list(next(subsets))]
        return np.linalg.svd(own - own.mean(0))[2][0]

    monkeypatch.setattr(np.random, "randn", top_direction)
    np.testing.assert_allclose(ours("smea", rows, f=f), byzfl.rules.SMEA(f)(rows), rtol=1e-9)


def mixed(name, rows, round=1, **params):
    """What one of our pre-aggregations makes of the rows."""
    step, seen = preaggregation.create(name, **params), []

    class Rule(aggregators.registry.get("mean")):
        def combine(self, updates, context):
            seen.append(updates.matrix.numpy().copy())
            return super().combine(updates, context)

    from wardround.aggregators.preaggregation.pipeline import pipeline_class

    rule = Rule()
    pipeline_class(Rule)(rule.params, rule, [step]).aggregate(Updates(rows.copy()), round)
    return seen[0]


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_pre_aggregations(byzfl, n, f, d):
    for seed in range(3):
        rows = problem(n, f, d, seed)
        np.testing.assert_allclose(
            mixed("nnm", rows, f=f), byzfl.rules.NNM(f)(rows.copy()), rtol=1e-9, atol=1e-11
        )
        np.testing.assert_allclose(mixed("arc", rows, f=f), byzfl.rules.ARC(f)(rows.copy()), rtol=1e-9)
        np.testing.assert_allclose(
            mixed("clipping", rows, norm=3.0), byzfl.rules.Clipping(3.0)(rows.copy()), rtol=1e-9
        )


def test_bucketing_is_theirs_for_the_same_draw(byzfl, monkeypatch):
    rows = problem(11, 2, 8)
    context = PreContext(1, 11, 2)
    mixture = preaggregation.create("bucketing", s=3).mix(Updates(rows), None, context)
    drawn = [int(i) for line in mixture.coefficients for i in line.nonzero().flatten()]
    drawn_rows = rows[drawn]

    class Permutation:
        def permutation(self, vectors):
            return drawn_rows

    module = sys.modules["byzfl.aggregators.preaggregators"]
    monkeypatch.setattr(module, "random_tool", lambda vectors: Permutation())
    np.testing.assert_allclose(mixed("bucketing", rows, s=3), byzfl.rules.Bucketing(3)(rows), rtol=1e-12)


@pytest.mark.parametrize(("n", "f", "d"), slow_but(PROBLEMS[:1], PROBLEMS))
@pytest.mark.parametrize("name", ["trimmed-mean", "median", "meamed", "rfa"])
def test_pipelines(byzfl, name, n, f, d):
    rows = problem(n, f, d)
    before = byzfl.rules.NNM(f)(byzfl.rules.ARC(f)(rows.copy()))
    rules = {
        "trimmed-mean": byzfl.rules.TrMean(f),
        "median": byzfl.rules.Median(),
        "meamed": byzfl.rules.Meamed(f),
        "rfa": byzfl.rules.GeometricMedian(nu=1e-9, T=20_000),
    }
    params = {"f": f} if name in ("trimmed-mean", "meamed") else {}
    params |= {"nu": 1e-9, "iterations": 20_000, "tolerance": 1e-13} if name == "rfa" else {}
    steps = [{"name": "arc", "f": f}, {"name": "nnm", "f": f}]
    tolerance = 1e-4 if name == "rfa" else 1e-8
    np.testing.assert_allclose(
        ours(name, rows, steps, **params), rules[name](before), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_flowers_strategies(n, f, d):
    """Flower's own functions behind FedMedian, FedTrimmedAvg, Krum and Bulyan."""
    functions = pytest.importorskip("flwr.server.strategy.aggregate", reason="Flower is not installed")
    rows = problem(n, f, d).astype(np.float32)
    results = [([row], 1) for row in rows]
    np.testing.assert_allclose(
        ours("median", rows), functions.aggregate_median(results)[0], rtol=1e-5, atol=1e-6
    )
    trimmed = functions.aggregate_trimmed_avg(results, f / n + 1e-9)[0]
    np.testing.assert_allclose(ours("trimmed-mean", rows, f=f), trimmed, rtol=1e-4, atol=1e-5)
    if n >= 2 * f + 3:
        np.testing.assert_allclose(
            ours("krum", rows, f=f), functions.aggregate_krum(results, f, 0)[0], rtol=1e-6
        )
