"""ALIE against numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from wardround import attacks
from wardround.attacks.alie import z_max
from wardround.errors import ParameterError


@pytest.mark.parametrize("k", [0.0, 2.5, -1.3])
def test_mean_and_unbiased_deviation_of_the_known_updates(k, honest, knowledge):
    known = honest.numpy()
    expected = known.mean(0) + k * (known.std(0, ddof=1) + 1e-8)
    rows = attacks.create("alie", k=k).craft(honest[:3], knowledge())
    np.testing.assert_allclose(rows.numpy(), np.tile(expected, (3, 1)), rtol=1e-12, atol=1e-12)


def test_default_shift_is_the_protocols(honest, knowledge):
    default = attacks.create("alie").craft(honest[:2], knowledge(2))
    assert torch.equal(default, attacks.create("alie", k=2.5).craft(honest[:2], knowledge(2)))


@pytest.mark.parametrize(("clients", "byzantine"), [(20, 4), (50, 24), (10, 1), (7, 3), (50, 12), (3, 1)])
def test_z_max_is_the_papers(clients, byzantine):
    supporters = clients // 2 + 1 - byzantine
    expected = norm.ppf((clients - byzantine - supporters) / (clients - byzantine))
    assert z_max(clients, byzantine) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("level", ["omniscient", "colluders"])
def test_auto_shift(level, honest, knowledge):
    seen = knowledge(3) if level == "omniscient" else knowledge(3, honest=honest[:3])
    known = seen.honest.numpy()
    z = norm.ppf((10 - 3 - 3) / 7)  # N = 10, f = 3: s = 6 − 3
    rows = attacks.create("alie", k="auto", knowledge=level).craft(honest[:3], seen)
    expected = known.mean(0) + z * (known.std(0, ddof=1) + 1e-8)
    np.testing.assert_allclose(rows[0].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_auto_counts_attackers_that_are_not_among_the_honest_rows(honest, knowledge):
    seen = knowledge(3, honest=honest[3:], own_rows=None)
    auto = attacks.create("alie", k="auto").craft(honest[:3], seen)
    assert torch.equal(auto, attacks.create("alie", k=z_max(10, 3)).craft(honest[:3], seen))


def test_auto_needs_an_honest_majority_and_a_count(honest, knowledge):
    with pytest.raises(ParameterError, match="N ≥ 2f\\+1, got N=10, f=5"):
        attacks.create("alie", k="auto").craft(honest[:5], knowledge(5))
    with pytest.raises(ParameterError, match="total_clients"):
        attacks.create("alie", k="auto").craft(honest[:3], attacks.Knowledge(round=1))


def test_matched_norm_is_the_median_known_norm(honest, knowledge):
    plain = attacks.create("alie").craft(honest[:1], knowledge(1))[0]
    row = attacks.create("alie", match_norm=True).craft(honest[:1], knowledge(1))[0]
    assert row.norm().item() == pytest.approx(float(np.median(np.linalg.norm(honest.numpy(), axis=1))))
    assert torch.cosine_similarity(row, plain, dim=0).item() == pytest.approx(1)


@pytest.mark.slow
def test_one_known_update_has_no_spread(honest):
    row = attacks.create("alie").craft(honest[:1], attacks.Knowledge(round=1))
    torch.testing.assert_close(row, honest[:1] + 2.5e-8, rtol=0, atol=1e-15)
