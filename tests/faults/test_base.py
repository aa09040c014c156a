"""Which features are broken."""

import pytest
import torch

from wardround import faults
from wardround.errors import ParameterError
from wardround.faults.base import choose_features


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.2, 2), (0.5, 5), (1.0, 10)])
def test_a_share_of_the_features_at_least_one(share, count):
    chosen = choose_features(torch.zeros(4, 3, 10), share, torch.Generator().manual_seed(0))
    assert len(chosen) == count == len(set(chosen.tolist()))
    assert chosen.tolist() == sorted(chosen.tolist())


def test_a_fault_without_state_takes_none():
    with pytest.raises(ParameterError, match="fault 'unit-error' keeps no state"):
        faults.create("unit-error").load_state_dict({"past": {}})
