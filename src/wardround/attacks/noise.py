"""Gaussian noise in place of an update."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import craft_rows, norms_of
from wardround.attacks.search_space import Range


@register("noise")
class Noise(Attack):
    r"""Send Gaussian noise instead of what was learnt.

    .. math::
        \text{relative}\quad & \tilde g \sim \mathcal N\big(0, (\mathrm{scale}\,\|g\|/\sqrt D)^2 I\big) \\
        \text{not relative}\quad & \tilde g \sim \mathcal N(0, \mathrm{std}^2 I)

    The relative form (default) has about `scale` times the norm of the honest update, whatever the model.
    With `of: parameters` the noise takes the place of the parameters, as in the DOS paper: the row is
    z − w, and the relative form measures against the norm of the client's own parameters w + g.

    CAAC-FL protocol, section 2.4; Alkhunaizi et al.: Suppressing Poisoning Attacks on Federated Learning
    for Medical Imaging, MICCAI 2022, section 4.3.

    >>> import torch
    >>> from wardround import attacks
    >>> row = attacks.create("noise").craft(torch.full((1, 10_000), 0.1), attacks.Knowledge(round=1))
    >>> bool(9.5 < row.norm() < 10.5)
    True
    """

    class Params(DisguiseParams):
        relative: bool = True
        """Measure the noise against the honest norm; otherwise `std` holds as it is."""
        scale: Annotated[float, Range(0.1, 100, log=True)] = Field(1.0, gt=0)
        """Norm of the noise as a multiple of the honest one (relative)."""
        std: Annotated[float, Range(0.001, 10, log=True)] = Field(1.0, gt=0)
        """Standard deviation of every coordinate (not relative)."""
        of: Literal["update", "parameters"] = "update"
        """What the noise replaces."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        weights = self.require_global_weights(knowledge, own) if self.params.of == "parameters" else None

        def row(i: int, honest: Tensor) -> Tensor:
            replaced = honest if weights is None else honest + weights
            deviation = self._deviation(replaced)
            noise = torch.empty_like(honest).normal_(0.0, deviation, generator=knowledge.generator(i))
            return noise if weights is None else noise.sub_(weights)

        return craft_rows(own, row)

    def _deviation(self, replaced: Tensor) -> float:
        if not self.params.relative:
            return float(self.params.std)
        return self.params.scale * norms_of(replaced[None]).item() / math.sqrt(len(replaced))
