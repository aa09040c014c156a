"""Sign flipping: send the opposite of what was learnt."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, Parameters, register
from wardround.attacks.search_space import Range


@register("sign-flip")
class SignFlip(Attack):
    r"""Invert and scale one's own update.

    .. math:: \tilde g = -\mathrm{scale}\cdot g

    CAAC-FL protocol, section 9.1 (scale 10); the FedBNP document uses scale 1.

    >>> import torch
    >>> from wardround import attacks
    >>> attacks.create("sign-flip").craft(torch.tensor([[1.0, -2.0]]), attacks.Knowledge(round=1))
    tensor([[-10.,  20.]])
    """

    class Params(Parameters):
        scale: Annotated[float, Range(0.1, 100, log=True)] = Field(10.0, gt=0)
        """Length of the reversed update, as a multiple of the honest one."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        return -self.params.scale * own
