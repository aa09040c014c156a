"""Our attacks beside those of ByzFL on random problems."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators, attacks

PROBLEMS = [(8, 1, 6), (12, 3, 40), (20, 4, 100)]


def problem(n, f, d, defence=None):
    """Attackers in the first f rows, who know the others' rows; ByzFL hands its attacks only those."""
    rows = np.random.default_rng([n, f, d]).normal(size=(n, d)) + 0.4
    honest = torch.from_numpy(rows[f:])
    return rows, attacks.Knowledge(round=1, honest=honest, own_rows=(), total_clients=n, defence=defence)


@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS)
def test_rows_are_the_same(byzfl, n, f, d):
    rows, knowledge = problem(n, f, d)
    own, honest = torch.from_numpy(rows[:f]), rows[f:]
    for name, params, theirs in [
        ("ipm", {"eps": 1.0}, byzfl.attacks.SignFlipping()),
        ("ipm", {"eps": 2.5}, byzfl.attacks.InnerProductManipulation(2.5)),
        ("alie", {"k": 1.5}, byzfl.attacks.ALittleIsEnough(1.5)),
        ("alie", {"k": -0.7}, byzfl.attacks.ALittleIsEnough(-0.7)),
        ("mimic", {"client": 3}, byzfl.attacks.Mimic(3)),
    ]:
        sent = attacks.create(name, **params).craft(own, knowledge).numpy()
        for row in sent:
            np.testing.assert_allclose(
                row, theirs(honest), rtol=1e-7, atol=2e-8, err_msg=name
            )  # alie adds 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alie", "ipm"])
@pytest.mark.parametrize(("n", "f", "d"), PROBLEMS[1:])
@pytest.mark.parametrize("rule", ["trimmed-mean", "median"])
def test_line_searches_end_at_the_same_row(byzfl, kind, n, f, d, rule):
    def defence(tried):
        everyone = torch.cat([torch.from_numpy(rows[f:]), tried])
        params = {"f": f} if rule == "trimmed-mean" else {}
        return aggregators.create(rule, **params, pre=[{"name": "nnm", "f": f}]).aggregate(Updates(everyone))

    rows, knowledge = problem(n, f, d, defence)
    behind = byzfl.rules.TrMean(f) if rule == "trimmed-mean" else byzfl.rules.Median()
    searches = {
        "alie": byzfl.attacks.Optimal_ALittleIsEnough,
        "ipm": byzfl.attacks.Optimal_InnerProductManipulation,
    }
    # numpy has no `array` of tensors in its search: it is handed arrays, as its own benchmark does
    theirs = searches[kind](agg=behind, pre_agg_list=[byzfl.rules.NNM(f)], f=f)(rows[f:])
    sent = attacks.create(f"optimal-{kind}").craft(torch.from_numpy(rows[:f]), knowledge)
    np.testing.assert_allclose(sent[0].numpy(), theirs, rtol=1e-6, atol=1e-7)


def test_gaussian_noise_has_their_distribution(byzfl):
    np.random.seed(0)  # ByzFL draws from numpy's global state
    theirs = byzfl.attacks.Gaussian(0.0, 2.0)(np.zeros((3, 20_000)))
    own = torch.ones(1, 20_000)
    ours = attacks.create("noise", relative=False, std=2.0).craft(own, attacks.Knowledge(round=1))[0].numpy()
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)
    assert abs(ours.mean()) < 0.06


def test_their_infinite_rows_never_reach_a_rule(byzfl):
    rows = np.random.default_rng(0).normal(size=(8, 5))
    rows[0] = byzfl.attacks.Inf()(rows[1:])
    out = aggregators.create("mean").aggregate(Updates(rows))
    assert list(out.dropped) == ["client-00"]
    np.testing.assert_allclose(out.delta.numpy(), rows[1:].mean(0))
