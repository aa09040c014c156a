"""FLDetector: its L-BFGS estimate, its scores, and when it accuses."""

import itertools

import pytest
import torch

from wardround import Updates, aggregators


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


def test_the_result_is_that_of_the_flags_whoever_was_flagged_before():
    """The sum is made with the flags of the last round, and again where they have changed."""
    rule, w = aggregators.create("fldetector", window=3), torch.zeros(40)
    honest = torch.randn(8, 40, generator=torch.Generator().manual_seed(0))
    seen = []
    for t in range(1, 20):
        rows = honest.clone()
        if t < 10:
            rows[0] = torch.randn(40, generator=torch.Generator().manual_seed(t))
        out = rule.aggregate(Updates(rows), t, global_weights=w)
        torch.testing.assert_close(out.delta, (out.weights @ rows.double()).float())
        assert (out.weights[out.flags] == 0).all()
        seen.append(bool(out.flags[0]))
        w = w + out.delta
    assert {(False, True), (True, True), (True, False)} <= set(itertools.pairwise(seen))


def test_scores_are_shares_of_the_distances_from_the_predictions():
    """The model moves by one step a round, which changed the aggregate by (3, 0) and is expected to do so again."""
    rule = aggregators.create("fldetector", window=2)
    step, change = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    rows = torch.tensor([[1.0, 2.0], [0.0, -1.0], [5.0, 0.5]])
    surprises = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-4.0, 0.0]])
    for t, sent in enumerate((rows, rows + change), start=1):
        out = rule.aggregate(Updates(sent), t, global_weights=t * step)
        assert out.scores.tolist() == [0, 0, 0], "nothing can be expected yet"
    out = rule.aggregate(Updates(rows + 2 * change + surprises), 3, global_weights=3 * step)
    torch.testing.assert_close(out.scores, torch.tensor([1 / 8, 3 / 8, 4 / 8], dtype=torch.float64))
