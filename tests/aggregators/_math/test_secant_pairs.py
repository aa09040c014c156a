"""The L-BFGS estimate against its definition, and what is kept from round to round."""

import numpy as np
import pytest
import torch

from wardround.aggregators._math.secant_pairs import SecantPairs


def estimated_change(moves, changes, move, window=4):
    pairs = SecantPairs(window)
    for pair in zip(moves, changes, strict=True):
        pairs.append(*pair)
    return pairs.estimate(move)


def test_the_estimate_satisfies_the_last_secant_equation():
    """Every quasi-Newton estimate maps the last step to the last change."""
    rng = np.random.default_rng(0)
    hessian = np.diag(rng.uniform(0.5, 3, size=30))
    moves = [torch.from_numpy(rng.normal(size=30)) for _ in range(4)]
    changes = [torch.from_numpy(hessian @ move.numpy()) for move in moves]
    np.testing.assert_allclose(
        estimated_change(moves, changes, moves[-1]).numpy(), changes[-1].numpy(), rtol=1e-8
    )


def test_the_estimate_is_the_bfgs_matrix():
    """Against the recursion B ← B − Bs(Bs)ᵀ/sᵀBs + yyᵀ/yᵀs from B = σI."""
    rng = np.random.default_rng(1)
    hessian = np.diag(rng.uniform(0.5, 3, size=12))
    moves = [rng.normal(size=12) for _ in range(3)]
    changes = [hessian @ move for move in moves]
    b = np.eye(12) * (changes[-1] @ moves[-1]) / (moves[-1] @ moves[-1])
    for s, y in zip(moves, changes, strict=True):
        bs = b @ s
        b = b - np.outer(bs, bs) / (s @ bs) + np.outer(y, y) / (y @ s)
    v = rng.normal(size=12)
    ours = estimated_change(
        *([torch.from_numpy(x) for x in xs] for xs in (moves, changes)), torch.from_numpy(v)
    )
    np.testing.assert_allclose(ours.numpy(), b @ v, rtol=1e-6)
    negative = estimated_change(
        [torch.from_numpy(x) for x in moves], [-torch.from_numpy(x) for x in changes], torch.from_numpy(v)
    )
    np.testing.assert_allclose(negative.numpy(), -(b @ v), rtol=1e-6)


def test_a_model_that_stands_still_tells_nothing():
    assert estimated_change([], [], torch.ones(3)) is None
    assert estimated_change([torch.zeros(3)], [torch.ones(3)], torch.ones(3)) is None


@pytest.mark.parametrize("d", [12, 40_000])
def test_only_the_last_pairs_count_however_estimates_and_pairs_follow_each_other(d, both_paths):
    rng = np.random.default_rng(2)
    moves, changes = (torch.from_numpy(rng.normal(size=(7, d))) for _ in range(2))
    pairs, move = SecantPairs(window=3), torch.from_numpy(rng.normal(size=d))
    for i in range(7):
        expected = estimated_change(moves[max(0, i - 3) : i], changes[max(0, i - 3) : i], moves[i], window=3)
        if i % 3 != 1:  # as a rule does: first the estimate for a move, then the pair with it
            found = pairs.estimate(moves[i])
            assert (found is None) == (expected is None) == (i == 0)
            if found is not None:
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
        pairs.append(moves[i], changes[i])
    torch.testing.assert_close(
        pairs.estimate(move), estimated_change(moves[-3:], changes[-3:], move), rtol=1e-6, atol=1e-8
    )


def test_a_saved_state_goes_on_to_the_bit(both_paths):
    generator = torch.Generator().manual_seed(0)
    moves, changes = (torch.randn(6, 5000, generator=generator) for _ in range(2))
    pairs = SecantPairs(window=2)
    for i in range(5):
        pairs.estimate(moves[i])
        pairs.append(moves[i], changes[i])
    resumed = SecantPairs(window=2)
    resumed.load_state_dict(pairs.state_dict())
    for both in (pairs, resumed):
        both.append(moves[5], changes[5])
    assert torch.equal(pairs.estimate(moves[0]), resumed.estimate(moves[0]))


def test_a_state_without_products_is_measured_anew():
    """As saved by versions that kept the pairs only, the oldest first."""
    generator = torch.Generator().manual_seed(0)
    moves, changes, v = (torch.randn(2, 30, generator=generator, dtype=torch.float64) for _ in range(3))
    pairs = SecantPairs(window=2)
    pairs.load_state_dict({"moves": list(moves), "changes": list(changes)})
    torch.testing.assert_close(pairs.estimate(v[0]), estimated_change(moves, changes, v[0]))
