"""Mimic: repeat one honest client until it counts for many."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, Parameters, register
from wardround.attacks.search_space import Range
from wardround.errors import ParameterError


@register("mimic")
class Mimic(Attack):
    r"""Copy one chosen honest client.

    .. math:: \tilde g = U_{i^*}

    Every row that is sent is honest, so no rule can call it an outlier, but one client's data counts
    B + 1 times. The attackers keep to the client they chose in their first round; in a round that it does
    not take part in, and where no honest client is visible, they send their own honest updates.

    S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing,
    ICLR 2022.

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.eye(3)
    >>> attacks.create("mimic").craft(honest[:1], attacks.Knowledge(round=1, honest=honest))
    tensor([[0., 1., 0.]])
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT,)

    class Params(Parameters):
        client: Annotated[int, Range(0, 7)] = Field(0, ge=0)
        """Which of the honest clients, by its place among those of the first attacked round."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.chosen: str | None = None

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        honest = knowledge.other_rows(own)
        if not honest:
            return own.clone()
        if self.chosen is not None and self.chosen not in knowledge.visible:
            return own.clone()
        if self.chosen is not None:
            row = knowledge.visible.index(self.chosen)
        elif self.params.client < len(honest):
            row = honest[self.params.client]
            self.chosen = knowledge.visible[row] if knowledge.visible else None
        else:
            raise ParameterError(
                f"mimic: client must be below the number of honest clients, {len(honest)}, got {self.params.client}"
            )
        return knowledge.known(own)[row].repeat(len(own), 1)

    def state_dict(self) -> dict[str, Any]:
        return {"chosen": self.chosen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chosen = state["chosen"]
