"""FLDetector: its L-BFGS estimate, its scores, and when it accuses."""

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators.fldetector import estimated_change


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


def run(attacker, rounds=12, window=4):
    """Clients minimise quadratics of their own by gradient steps; client 0 sends what `attacker` makes of its step."""
    generator = torch.Generator().manual_seed(3)
    goals = torch.randn(10, 40, generator=generator)
    rule, w, seen = aggregators.create("fldetector", window=window), torch.zeros(40), []
    for t in range(1, rounds + 1):
        rows = -0.3 * (w - goals)
        rows[0] = attacker(rows[0], t)
        out = rule.aggregate(Updates(rows), t, global_weights=w)
        w = w + out.delta
        seen.append(out.flags)
    return torch.stack(seen), out


def test_a_client_that_is_not_itself_is_flagged_once_the_window_is_full():
    def noise(row, t):
        return torch.randn(40, generator=torch.Generator().manual_seed(t))

    flags, last = run(noise)
    assert not flags[:4].any()
    assert flags[-1].tolist() == [True] + [False] * 9
    assert last.weights[0] == 0
    assert last.scores.argmax() == 0


def test_honest_clients_are_predicted_and_nobody_is_accused():
    flags, last = run(lambda row, t: row)
    assert not flags[-1].any()
    assert last.weights.min() > 0


@pytest.mark.parametrize("missing", [0, 3])
def test_a_client_that_was_away_comes_back(missing):
    rule, w = aggregators.create("fldetector", window=2), torch.zeros(5)
    for t in range(1, 6):
        rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(t))
        present = [i for i in range(6) if t != 3 or i != missing]
        out = rule.aggregate(Updates(rows).select(present), t, global_weights=w)
        w = w + out.delta
        assert out.skipped is None
