"""Gaussian noise on top of an update."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import craft_rows
from wardround.attacks.search_space import Range


@register("additive-noise")
class AdditiveNoise(Attack):
    r"""Add Gaussian noise to one's own update.

    .. math:: \tilde g = g + \epsilon, \qquad \epsilon \sim \mathcal N(0, \mathrm{std}^2 I)

    FedBNP document, section III-A (σ = 5).

    >>> import torch
    >>> from wardround import attacks
    >>> row = attacks.create("additive-noise").craft(torch.ones(1, 10_000), attacks.Knowledge(round=1))
    >>> bool(4.9 < row.std() < 5.1)
    True
    """

    class Params(DisguiseParams):
        std: Annotated[float, Range(0.001, 10, log=True)] = Field(5.0, gt=0)
        """Standard deviation of every coordinate."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        def row(i: int, honest: Tensor) -> Tensor:
            noise = torch.empty_like(honest).normal_(0.0, self.params.std, generator=knowledge.generator(i))
            return noise.add_(honest)

        return craft_rows(own, row)
