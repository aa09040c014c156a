"""Trust from attention and policy, and the shares that follow from it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround.aggregators.fedbnp.trust import combined_trust, shares


@given(st.floats(0, 1), st.floats(0, 1))
def test_trust_by_hand(a, policy):
    mixed = 0.6 * a + 0.4 * policy
    opinions = torch.tensor([a], dtype=torch.float64), torch.tensor([policy], dtype=torch.float64)
    assert combined_trust(*opinions, form="sharp").item() == pytest.approx(mixed)
    document = combined_trust(*opinions).item()
    assert document == pytest.approx(1 / (1 + math.exp(-mixed)))
    assert 0.5 <= document <= 0.7311


def test_shares_sum_to_one_even_when_nobody_is_trusted():
    assert shares(torch.tensor([0.2, 0.6])).tolist() == pytest.approx([0.25, 0.75])
    assert shares(torch.zeros(4)).tolist() == [0.25] * 4
