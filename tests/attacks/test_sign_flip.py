"""Sign flipping: the update reversed and scaled."""

from __future__ import annotations

import torch

from wardround import attacks


def test_sign_flip_defaults_to_the_protocols_scale(honest, knowledge):
    torch.testing.assert_close(attacks.create("sign-flip").craft(honest[:2], knowledge(2)), honest[:2] * -10)
    torch.testing.assert_close(
        attacks.create("sign-flip", scale=1).craft(honest[:2], knowledge(2)), -honest[:2]
    )
