"""Attacks that only transform the client's own update: sign-flip, scaling, partial scaling, crafted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround import attacks
from wardround.attacks.partial_scaling import random_mask
from wardround.errors import ParameterError


def test_sign_flip_defaults_to_the_protocols_scale(honest, knowledge):
    torch.testing.assert_close(attacks.create("sign-flip").craft(honest[:2], knowledge(2)), honest[:2] * -10)
    torch.testing.assert_close(
        attacks.create("sign-flip", scale=1).craft(honest[:2], knowledge(2)), -honest[:2]
    )


@pytest.mark.parametrize("factor", [10, 100, -0.5])
def test_scaling_of_update_and_of_parameters(factor, honest, knowledge):
    seen = knowledge(2)
    of_update = attacks.create("scaling", factor=factor).craft(honest[:2], seen)
    torch.testing.assert_close(of_update, honest[:2] * factor)
    of_parameters = attacks.create("scaling", factor=factor, of="parameters").craft(honest[:2], seen)
    model_sent = seen.global_weights + of_parameters
    torch.testing.assert_close(model_sent, factor * (seen.global_weights + honest[:2]))


def test_parameters_need_the_global_model(honest):
    for name in ("scaling", "noise"):
        with pytest.raises(ParameterError, match="global_weights"):
            attacks.create(name, of="parameters").craft(honest[:1], attacks.Knowledge(round=1))


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 1.0])
def test_partial_scaling_scales_exactly_its_share(rho):
    own = torch.full((2, 1001), 3.0)
    rows = attacks.create("partial-scaling", rho=rho).craft(own, attacks.Knowledge(round=1))
    for row in rows:
        assert set(row.tolist()) <= {3.0, 30.0}
        assert int((row == 30).sum()) == round(rho * 1001)
    if 0 < rho < 1:
        assert not torch.equal(rows[0], rows[1])


@given(size=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 2**40))
def test_mask_has_exactly_its_share(size, share, seed):
    mask = random_mask(size, share, torch.Generator().manual_seed(seed))
    assert int(mask.sum()) == round(share * size)


def test_mask_is_uniform_over_coordinates():
    generator = torch.Generator().manual_seed(0)
    counts = sum(random_mask(8, 0.25, generator).double() for _ in range(8000))
    assert ((counts - 2000).abs() < 5 * (8000 * 0.25 * 0.75) ** 0.5).all()


def test_crafted_steps_back_by_the_sign(honest, knowledge):
    seen = knowledge(2)
    rows = attacks.create("crafted", lambda_step=0.3).craft(honest[:2], seen)
    step = seen.global_weights - seen.previous_global_weights
    torch.testing.assert_close(rows, torch.where(step > 0, -0.3, 0.3).to(rows.dtype).repeat(2, 1))


def test_crafted_is_honest_without_a_last_step(honest):
    rows = attacks.create("crafted").craft(honest[:2], attacks.Knowledge(round=1, global_weights=honest[0]))
    assert torch.equal(rows, honest[:2])
