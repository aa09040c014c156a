"""Free rider: take part without training."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, Parameters, register
from wardround.attacks.search_space import FIXED, Range


@register("free-rider")
class FreeRider(Attack):
    r"""Send something that looks like work, made of what the server sent.

    .. math:: \tilde g = \begin{cases} 0 & \text{plain} \\
        \mathcal N(0, (\varphi\,\sigma\,t^{-\gamma})^2) & \text{disguised} \\
        w^t - w^{t-1} & \text{delta} \end{cases}

    with σ the standard deviation of the coordinates of the last global step, standing for the first one of the paper,
    and t the round since the attack began. Before the server has moved (the first round) the row is zero. The harm is a
    slower model and a model had for nothing, not a broken one.

    Y. Fraboni, R. Vidal, M. Lorenzi: Free-rider Attacks on Model Aggregation in Federated Learning, AISTATS 2021
    (plain, disguised); J. Lin, M. Du, J. Liu: Free-riders in Federated Learning: Attacks and Defenses, 2019 (delta).

    >>> import torch
    >>> from wardround import attacks
    >>> known = attacks.Knowledge(round=2, global_weights=torch.ones(2), previous_global_weights=torch.zeros(2))
    >>> attacks.create("free-rider", kind="delta").craft(torch.full((1, 2), 9.0), known)
    tensor([[1., 1.]])
    """

    class Params(Parameters):
        kind: Literal["plain", "disguised", "delta"] = "disguised"
        """What is sent instead of work."""
        noise: Annotated[float, Range(0.1, 10, log=True)] = Field(1.0, gt=0)
        """φ: strength of the disguise, as a multiple of σ."""
        decay: Annotated[float, FIXED] = Field(1.0, ge=0)
        """γ: how fast the disguise fades, as honest updates do."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        rows, step = torch.zeros_like(own), knowledge.last_global_update()
        if step is None or self.params.kind == "plain":
            return rows
        step = step.reshape(-1).to(own.dtype)
        if self.params.kind == "delta":
            return rows + step
        elapsed = max(1, knowledge.round - knowledge.start + 1)
        std = self.params.noise * float(step.double().std(correction=0)) * elapsed**-self.params.decay
        for i, row in enumerate(rows):
            row.copy_(torch.randn(len(row), generator=knowledge.generator(i)) * std)
        return rows
