import pytest
import torch

from wardround import faults
from wardround.attacks import LocalData
from wardround.errors import ParameterError


def test_factor_and_offset_of_one_column():
    data = LocalData(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 1]), 2)
    fault = faults.create("unit-error", share=0.5, factor=1.8, offset=32)
    spoilt = fault.spoil(data, torch.Generator().manual_seed(0)).inputs
    wrong = (spoilt != data.inputs).all(0)
    assert wrong.sum() == 1
    torch.testing.assert_close(spoilt[:, wrong].flatten(), torch.tensor([33.8, 35.6]))


def test_pictures_are_clipped():
    data = LocalData(torch.tensor([[[[0, 10], [20, 100]]]], dtype=torch.uint8), torch.tensor([1]), 2)
    spoilt = faults.create("unit-error", share=1.0).spoil(data, torch.Generator()).inputs
    assert spoilt.flatten().tolist() == [0, 180, 255, 255]


def test_nothing_wrong_is_refused():
    with pytest.raises(ParameterError, match="leave everything as it is"):
        faults.create("unit-error", factor=1)
