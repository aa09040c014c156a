"""DBA: every attacker learns a part of the trigger; together they make the whole one work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import Attack, Knowledge, register
from wardround.attacks.search_space import FIXED, Range


@register("dba")
class DistributedBackdoor(Backdoor):
    r"""Split the trigger into parts, train each attacker on one of them, and test with the whole.

    Attacker j stamps part j mod M of the trigger: for a patch, a run of its pixels; for features, every M-th of them.
    Success is measured with the whole trigger, which no client has trained on. The rows are γ times what was learnt.

    C. Xie, K. Huang, P.-Y. Chen, B. Li: DBA: Distributed Backdoor Attacks against Federated Learning, ICLR 2020
    (four parts; γ = 100 in a single shot, 1 where attackers strike in every round).

    >>> import torch
    >>> from wardround import attacks
    >>> attack = attacks.create("dba", features=[0, 1, 2], pieces=3, value=9)
    >>> (first, clients), *others = attack.assign(["a", "b", "c", "d"])
    >>> first.trigger(torch.zeros(1, 4)), clients
    (tensor([[9., 0., 0., 0.]]), ('a', 'd'))
    >>> attack.trigger(torch.zeros(1, 4))
    tensor([[9., 9., 9., 0.]])
    """

    class Params(Backdoor.Params):
        pieces: Annotated[int, FIXED] = Field(4, ge=1)
        """M: parts of the trigger; never more than it has pixels or features."""
        boost: Annotated[float, Range(1, 50, log=True)] = Field(1.0, gt=0)
        """γ."""

    params: Params

    def assign(self, clients: Sequence[str]) -> list[tuple[Attack, tuple[str, ...]]]:
        shares: list[tuple[Attack, tuple[str, ...]]] = []
        for part in range(self.params.pieces):
            own = tuple(clients[part :: self.params.pieces])
            if own:
                shares.append((PartialTrigger(self.params, part), own))
        return shares

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        return own * self.params.boost


class PartialTrigger(DistributedBackdoor):
    """The attack of those who have one part of the trigger."""

    name = "dba"

    def __init__(self, params: DistributedBackdoor.Params, part: int) -> None:
        super().__init__(params)
        self.part = part

    def assign(self, clients: Sequence[str]) -> list[tuple[Attack, tuple[str, ...]]]:
        return [(self, tuple(clients))]

    def trigger(self, inputs: Tensor) -> Tensor:
        whole = super().trigger(inputs)
        places = self._places(inputs)
        parts = min(self.params.pieces, len(places))
        mine = self._mine(places, parts, inputs)
        stamped = inputs.clone().reshape(len(inputs), *self._flat(inputs))
        stamped[..., mine] = whole.reshape(stamped.shape)[..., mine]
        return stamped.reshape(inputs.shape)

    def _mine(self, places: Tensor, parts: int, inputs: Tensor) -> Tensor:
        part = self.part % parts
        return places.tensor_split(parts)[part] if self._is_patch(inputs) else places[part::parts]

    def _is_patch(self, inputs: Tensor) -> bool:
        kind = self.params.kind
        return kind == "patch" or (kind == "auto" and inputs.ndim >= 4)

    def _flat(self, inputs: Tensor) -> tuple[int, ...]:
        """The shape of a sample in which the trigger's places are the last axis."""
        if self._is_patch(inputs):
            return (*inputs.shape[1:-2], inputs.shape[-2] * inputs.shape[-1])
        return tuple(inputs.shape[1:])

    def _places(self, inputs: Tensor) -> Tensor:
        """Where the whole trigger lies on the last axis of `_flat`."""
        if self._is_patch(inputs):
            height, width = inputs.shape[-2:]
            grid = torch.arange(height * width).view(height, width)
            return grid[-self.params.patch :, -self.params.patch :].reshape(-1)
        return torch.tensor([feature % inputs.shape[-1] for feature in self.params.features])
