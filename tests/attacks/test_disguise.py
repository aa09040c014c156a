"""Crafted rows that keep the norm, or the norm and the residual, of the attacker's own honest update."""

import pytest
import torch

from wardround import attacks
from wardround.attacks.disguise import keep_own
from wardround.runs.config import load_config

DISGUISED = [name for name in attacks.available() if "keep" in attacks.registry.keys(name)]


def rows(seed=0, n=9, d=50):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.4


def crafted(name, keep, honest, own=3):
    knowledge = attacks.Knowledge(
        round=3, global_weights=torch.ones(honest.shape[1]), honest=honest, own_rows=tuple(range(own)),
        previous_global_weights=torch.linspace(-1, 2, honest.shape[1]), total_clients=len(honest), start=1,
    )  # fmt: skip
    return attacks.create(name, keep=keep).craft(honest[:own], knowledge)


def test_every_attack_with_a_direction_of_its_own_has_the_option():
    assert DISGUISED == [
        "additive-noise", "alie", "crafted", "fang-krum", "fang-trimmed-mean", "ipm", "min-max", "min-sum", "noise",
        "partial-scaling", "rare-outcome", "slow-drift",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keep", ["norm", "residual"])
@pytest.mark.parametrize("name", DISGUISED)
def test_rows_have_the_norm_of_the_honest_update(name, keep, seed):
    honest = rows(seed)
    torch.testing.assert_close(crafted(name, keep, honest).norm(dim=1), honest[:3].norm(dim=1))


@pytest.mark.parametrize("name", DISGUISED)
def test_the_norm_alone_changes_no_direction(name):
    honest = rows()
    plain, kept = crafted(name, "nothing", honest), crafted(name, "norm", honest)
    torch.testing.assert_close(torch.cosine_similarity(plain, kept), torch.ones(3))


@pytest.mark.parametrize("name", DISGUISED)
def test_the_residual_is_the_attackers_own(name):
    """At right angles to the crafted direction a row is the honest one, up to its length."""
    honest = rows()
    plain, kept = crafted(name, "nothing", honest).double(), crafted(name, "residual", honest).double()
    direction = plain / plain.norm(dim=1, keepdim=True)

    def residual(matrix):
        return matrix - (matrix * direction).sum(1, keepdim=True) * direction

    ours, theirs = residual(kept), residual(honest[:3].double())
    known = theirs.norm(dim=1) > 1e-6
    torch.testing.assert_close(
        torch.cosine_similarity(ours[known], theirs[known]),
        torch.ones(int(known.sum()), dtype=torch.float64),
        atol=1e-5,
        rtol=0,
    )
    assert ((kept * direction).sum(1) > 0).all(), "and along it, it goes where the attack goes"


def test_ipm_with_the_residual_is_the_reversed_mean_and_the_own_residual():
    honest = rows().double()
    mean, own = honest.mean(0), honest[0]
    unit = mean / mean.norm()
    row = -mean + own - (own @ unit) * unit
    expected = row / row.norm() * own.norm()
    knowledge = attacks.Knowledge(round=1, honest=honest)
    sent = attacks.create("ipm", eps=1, keep="residual").craft(honest[:1], knowledge)
    torch.testing.assert_close(sent[0], expected)
    assert float(sent[0] @ mean) < 0


def test_rows_without_a_direction():
    own, zero = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
    assert torch.equal(keep_own(zero, own, "norm"), zero)
    torch.testing.assert_close(keep_own(zero, own, "residual"), own)


def test_huge_rows_do_not_overflow():
    own = torch.tensor([[3.0, 4.0]])
    for keep in ("norm", "residual"):
        torch.testing.assert_close(
            keep_own(torch.tensor([[1e30, 0.0]]), own, keep), torch.tensor([[5.0, 0.0]])
        )


def test_the_default_is_no_part_of_a_runs_hash():
    said, unsaid = (
        load_config({"attack": {"name": "ipm", "fraction": 0.2, **more}})
        for more in ({"keep": "nothing"}, {})
    )
    other = load_config({"attack": {"name": "ipm", "fraction": 0.2, "keep": "residual"}})
    assert said.hash == unsaid.hash != other.hash
    assert said.legacy_hash == unsaid.legacy_hash != other.legacy_hash
