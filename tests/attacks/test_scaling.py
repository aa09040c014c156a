"""Scaling of the update or of the parameters."""

from __future__ import annotations

import pytest
import torch

from wardround import attacks
from wardround.errors import ParameterError


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
