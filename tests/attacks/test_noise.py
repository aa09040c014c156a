"""The noisy attacks: right moments, right place, one stream a client."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from wardround import attacks

D = 20_000


@pytest.fixture
def own():
    return torch.randn(2, D, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.01], [3.0]])


@pytest.mark.parametrize("scale", [0.5, 1, 20])
def test_relative_noise_has_a_multiple_of_the_honest_norm(own, scale):
    rows = attacks.create("noise", scale=scale).craft(own, attacks.Knowledge(round=1))
    for row, honest in zip(rows, own, strict=True):
        assert row.norm() / honest.norm() == pytest.approx(scale, rel=5 / (2 * D) ** 0.5)
        spread = scale * honest.norm().item() / D**0.5
        assert kstest(row.numpy(), "norm", (0, spread)).pvalue > 1e-4


def test_absolute_noise(own):
    rows = attacks.create("noise", relative=False, std=0.3).craft(own, attacks.Knowledge(round=1))
    for row in rows:
        assert kstest(row.numpy(), "norm", (0, 0.3)).pvalue > 1e-4


def test_noise_as_parameters_is_what_the_server_gets_as_the_model(own):
    w = torch.full((D,), 7.0)
    absolute = attacks.create("noise", of="parameters", relative=False, std=2.0)
    model = w + absolute.craft(own, attacks.Knowledge(round=1, global_weights=w))[0]
    assert kstest(model.numpy(), "norm", (0, 2)).pvalue > 1e-4
    relative = attacks.create("noise", of="parameters").craft(own, attacks.Knowledge(1, global_weights=w))
    assert (w + relative[0]).norm() == pytest.approx((w + own[0]).norm().item(), rel=0.05)


def test_additive_noise_keeps_the_update_below_it(own):
    rows = attacks.create("additive-noise").craft(own, attacks.Knowledge(round=1))
    for row, honest in zip(rows, own, strict=True):
        assert kstest((row - honest).numpy(), "norm", (0, 5)).pvalue > 1e-4


@pytest.mark.parametrize("name", ["noise", "additive-noise", "partial-scaling", "fang-trimmed-mean"])
def test_threads_change_nothing(name):
    own = torch.randn(3, 100_000, generator=torch.Generator().manual_seed(1))
    seen = attacks.Knowledge(round=2, clients=("a", "b", "c"), seed=9)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attacks.create(name).craft(own, seen)
        torch.set_num_threads(3)
        together = attacks.create(name).craft(own, seen)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, together)
    assert not torch.equal(alone[0] - own[0], alone[1] - own[1])
