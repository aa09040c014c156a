import math

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.errors import ParameterError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_twenty_golden_rounds(golden_caac, dtype, both_paths):
    rule = aggregators.create("caac")
    for t, expected in enumerate(golden_caac, start=1):
        updates = Updates(
            torch.tensor(expected["matrix"], dtype=dtype), expected["clients"], expected["num_samples"]
        )
        assert rule.bootstrapping == expected["bootstrap"]
        out = rule.aggregate(updates, t)
        delta = np.array(expected["delta"])
        assert np.linalg.norm(out.delta.double().numpy() - delta) <= 1e-5 * np.linalg.norm(delta)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-7
        np.testing.assert_allclose(out.weights, expected["weights"], rtol=tolerance, atol=1e-8)
        np.testing.assert_allclose(out.scores, expected["anomaly"], rtol=tolerance, atol=1e-6)
        for column in ("threshold", "clip_scale", "reliability"):
            np.testing.assert_allclose(out.columns[column], expected[column], rtol=tolerance)


def row(norm, d=16):
    return torch.full((d,), norm / math.sqrt(d), dtype=torch.float64)


def test_a_round_by_hand():
    """Three clients of norm 1, 1, 3, no bootstrap: M = 1, MAD = 0, σ = 0.1; the third is 20 σ away."""
    rule = aggregators.create("caac", t_boot=0)
    out = rule.aggregate(Updates(torch.stack([row(1.0), row(1.0), row(3.0)])))
    a_mag, a_temp = 2 / 0.1, 0.2 / 1.0
    anomaly = math.sqrt(0.4 * a_mag**2 + 0.2 * a_temp**2)
    assert out.scores.tolist() == pytest.approx([0, 0, anomaly], rel=1e-5)
    assert out.flags.tolist() == [False, False, True]
    assert out.columns["reliability"].tolist() == pytest.approx([0.55, 0.55, 0.45])
    s = [1 + 0.5 * 0.55, 1 + 0.5 * 0.55, 0.25]
    assert out.columns["threshold"].tolist() == pytest.approx(s)
    assert out.columns["clip_scale"].tolist() == pytest.approx([1, 1, 0.25 / 3])
    omega = [0.55, 0.55, 0.45 * math.exp(-0.5 * anomaly)]
    assert out.weights.tolist() == pytest.approx([w / sum(omega) for w in omega], rel=1e-5)


def test_direction_alone_never_reaches_the_threshold():
    """A_dir ≤ 2, so √0.4·2 < 2: a sudden full reversal at the same norm is not flagged."""
    rule = aggregators.create("caac", t_boot=2)
    steady = torch.stack([row(1.0)] * 5)
    for t in range(1, 60):
        rule.aggregate(Updates(steady), t)
    reversed_ = steady.clone()
    reversed_[0] *= -1
    out = rule.aggregate(Updates(reversed_), 60)
    assert out.columns["cosine"][0] == pytest.approx(-1)
    assert out.columns["a_dir"][0] > 1.9
    assert out.scores[0] < 2
    assert not out.flags.any()


def test_a_persistent_attacker_becomes_normal_for_this_client():
    rule = aggregators.create("caac", t_boot=5)
    generator = torch.Generator().manual_seed(0)
    flagged = []
    for t in range(1, 25):
        rows = torch.stack([row(1.0)] * 8) + 0.02 * torch.randn(
            8, 16, generator=generator, dtype=torch.float64
        )
        if t > 8:
            rows[0] *= 10
        flags = rule.aggregate(Updates(rows), t).flags
        assert (flags is None) == (t <= 5), (
            "in the bootstrap nobody can be flagged, and the rule says nothing"
        )
        flagged.append(flags is not None and bool(flags[0]))
    assert flagged[8]
    assert not any(flagged[12:])


def test_a_dropped_client_loses_reliability_after_the_bootstrap_and_keeps_its_profile():
    rule = aggregators.create("caac", t_boot=1)
    rows = torch.stack([row(1.0)] * 4)
    rule.aggregate(Updates(rows), 1)
    rule.aggregate(Updates(rows), 2)
    before = rule.profiles[1].clone()
    broken = rows.clone()
    broken[1, 0] = torch.nan
    out = rule.aggregate(Updates(broken), 3)
    assert out.flags[1]
    assert out.weights[1] == 0
    after = rule.profiles[1]
    assert after[3] == pytest.approx(0.9 * before[3])
    assert torch.equal(after[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_bootstrap_lasts_until_everyone_is_known_but_not_for_ever():
    rows, everyone = torch.stack([row(1.0)] * 3), ["a", "b", "c"]
    rule = aggregators.create("caac", t_boot=4)
    rule.aggregate(Updates(rows, everyone), 1)
    for t in range(2, 8):
        rule.aggregate(Updates(rows[:2], everyone[:2]), t)
        assert rule.bootstrapping  # c has been seen once in t rounds
    rule.aggregate(Updates(rows[:2], everyone[:2]), 8)
    assert not rule.bootstrapping


def test_bootstrap_clips_to_the_first_rounds_median_or_what_is_given():
    loud = torch.stack([row(1.0), row(1.0), row(100.0)])
    out = aggregators.create("caac").aggregate(Updates(loud))
    assert out.columns["threshold"].tolist() == pytest.approx([1, 1, 1])
    torch.testing.assert_close(out.delta, row(1.0))
    out = aggregators.create("caac", bootstrap_clip=0.5).aggregate(Updates(loud))
    torch.testing.assert_close(out.delta, row(0.5))


@pytest.mark.parametrize(
    ("name", "lambdas"),
    [
        ("caac", {"mag": 0.4, "dir": 0.4, "temp": 0.2}),
        ("caac-mag", {"mag": 1, "dir": 0, "temp": 0}),
        ("caac-dir", {"mag": 0, "dir": 1, "temp": 0}),
        ("caac-temp", {"mag": 0, "dir": 0, "temp": 1}),
        ("caac-mag+dir", {"mag": 0.5, "dir": 0.5, "temp": 0}),
    ],
)
def test_ablations_rescale_what_they_keep(name, lambdas, make_updates):
    rule = aggregators.create(name, t_boot=1)
    assert rule.lambdas == pytest.approx(lambdas)
    rule.aggregate(make_updates(10, 40, seed=1), 1)
    out = rule.aggregate(make_updates(10, 40, seed=2), 2)
    expected = torch.sqrt(sum(lambdas[k] * out.columns[f"a_{k}"] ** 2 for k in lambdas))
    torch.testing.assert_close(out.scores, expected)


def test_impossible_bounds_are_explained():
    with pytest.raises(ParameterError, match=r"f_min must not exceed f_max, got 3\.0 > 2\.0"):
        aggregators.create("caac", f_min=3.0)


def shouted(**params):
    """Scores of a row a million times too long, and of honest ones, after one update of 3e38 in the bootstrap."""
    rule = aggregators.create("caac", t_boot=3, **params)
    generator = torch.Generator().manual_seed(0)
    for round in (1, 2, 3):
        rows = torch.ones(8, 20) + 0.1 * torch.randn(8, 20, generator=generator)
        if round == 2:
            rows[0] *= 3e38 / rows[0].norm()
        rule.aggregate(Updates(rows), round)
    rows = torch.ones(8, 20) + 0.1 * torch.randn(8, 20, generator=generator)
    rows[0] *= 1e6
    result = rule.aggregate(Updates(rows), 4)
    return result.scores[0], result.scores[1:].max(), bool(result.flags[0])


def test_one_huge_update_in_the_bootstrap_blinds_the_protocols_rule_and_not_the_robust_one():
    too_long, honest, flagged = shouted()
    assert too_long < honest
    assert not flagged
    too_long, honest, flagged = shouted(robust_bootstrap=True)
    assert too_long > 1000 * honest
    assert flagged
