"""Slow drift: turn away from honest behaviour so slowly that no round stands out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import mean_of, norms_of
from wardround.attacks.search_space import Range


@register("slow-drift")
class SlowDrift(Attack):
    r"""Blend from the honest update into a fixed adversarial direction, keeping the honest norm.

    .. math::
        \tilde g = (1-a)\,g + a\,\|g\|\,d, \qquad a = \mathrm{clip}\Big(\frac{t-t_{start}}{\mathrm{ramp}},0,1\Big)

    d is the opposite of the mean of the colluders' updates in the first round they strike in, normalised,
    and kept from then on.

    CAAC-FL protocol, section 9.3.

    >>> import torch
    >>> from wardround import attacks
    >>> drift, g = attacks.create("slow-drift", ramp=4), torch.tensor([[3.0, 4.0]])
    >>> [drift.craft(g, attacks.Knowledge(round=t)).tolist() for t in (1, 3, 5, 9)]
    [[[3.0, 4.0]], [[0.0, 0.0]], [[-3.0, -4.0]], [[-3.0, -4.0]]]
    """

    knowledge_levels = (KnowledgeLevel.COLLUDERS,)
    is_gradual = True

    class Params(DisguiseParams):
        ramp: Annotated[int, Range(1, 40, log=True)] = Field(20, ge=1)
        """Rounds from the first sign of drift to full strength."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.direction: Tensor | None = None

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        if self.direction is None:
            mean = mean_of(knowledge.known(own))
            length = norms_of(mean[None]).item()
            # A zero mean has no opposite: the drift then fades to zero.
            self.direction = mean / -length if length > 0 else mean
        strength = min(1.0, max(0.0, (knowledge.round - knowledge.start) / self.params.ramp))
        pull = (strength * norms_of(own)).to(own.dtype)[:, None] * self.direction.to(own.dtype)
        return pull.add_(own, alpha=1 - strength)

    def state_dict(self) -> dict[str, Any]:
        return {"direction": None if self.direction is None else self.direction.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.direction = None if state["direction"] is None else state["direction"].clone()
