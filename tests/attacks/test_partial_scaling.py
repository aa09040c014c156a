"""Partial scaling: exactly its share of coordinates, drawn uniformly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround import attacks
from wardround.attacks.partial_scaling import random_mask


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


@pytest.mark.slow
def test_mask_is_uniform_over_coordinates():
    generator = torch.Generator().manual_seed(0)
    counts = sum(random_mask(8, 0.25, generator).double() for _ in range(8000))
    assert ((counts - 2000).abs() < 5 * (8000 * 0.25 * 0.75) ** 0.5).all()
