"""Mimic: repeat one honest client until it counts for many."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, Parameters, register
from wardround.attacks.search_space import FIXED, Range
from wardround.errors import ParameterError
from wardround.randomness import torch_generator


@register("mimic")
class Mimic(Attack):
    r"""Copy one chosen honest client.

    .. math:: \tilde g = U_{i^*}

    Every row that is sent is honest, so no rule can call it an outlier, but one client's data counts
    B + 1 times. The attackers keep to the client they chose in their first round; in a round that it does
    not take part in, and where no honest client is visible, they send their own honest updates.

    S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing,
    ICLR 2022.

    With `warmup` the attackers first study so many rounds, before or after their window opens, and send honest updates
    meanwhile. They follow the direction z in which the clients differ most,

    .. math:: z \leftarrow \frac{t}{t+1} z + \frac{1}{t+1}
        \frac{\sum_i \langle U_i - \mu, z\rangle (U_i - \mu)}{\|\sum_i \langle U_i - \mu, z\rangle (U_i - \mu)\|}

    and then copy the honest client with the greatest :math:`|\sum_t \langle z, U_i - \mu\rangle|`: the one whose
    over-representation biases the model most (the paper's attack; `client` is not used then).

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
        warmup: Annotated[int, FIXED] = Field(0, ge=0)
        """Rounds to study before the client is chosen; 0: `client` says which."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.chosen: str | None = None
        self.observes = self.params.warmup > 0
        self.studied = 0
        self.direction: Tensor | None = None
        self.along: dict[str, float] = {}
        """Honest client → how far it went along the direction, over the rounds studied."""

    def observe(self, own: Tensor, knowledge: Knowledge) -> None:
        """Study a round of the warm-up."""
        honest = knowledge.other_rows(own)
        if self.studied >= self.params.warmup or not honest or not knowledge.visible:
            return
        rows = knowledge.known(own)[honest].double()
        rows = rows - rows.mean(0)
        if self.direction is None:
            self.direction = torch.randn(
                rows.shape[1], generator=torch_generator(knowledge.seed, "mimic"), dtype=torch.float64
            )
        pull = (rows @ self.direction) @ rows
        length = float(pull.norm())
        if length > 0:
            t = self.studied + 1
            self.direction = self.direction / self.direction.norm() * t / (t + 1) + pull / length / (t + 1)
        for row, value in zip(honest, (rows @ self.direction).tolist(), strict=True):
            client = knowledge.visible[row]
            self.along[client] = self.along.get(client, 0.0) + value
        self.studied += 1
        if self.studied == self.params.warmup:
            self.chosen = max(sorted(self.along), key=lambda client: abs(self.along[client]))

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        honest = knowledge.other_rows(own)
        if not honest:
            return own.clone()
        if self.chosen is not None and self.chosen not in knowledge.visible:
            return own.clone()
        if self.chosen is None and self.params.warmup:
            return own.clone()  # still studying
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
        own: dict[str, Any] = {"chosen": self.chosen}
        if self.params.warmup:
            direction = None if self.direction is None else self.direction.clone()
            own |= {"studied": self.studied, "direction": direction, "along": dict(self.along)}
        return own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chosen = state["chosen"]
        if self.params.warmup:
            self.studied, self.direction = state["studied"], state["direction"]
            self.along = dict(state["along"])
