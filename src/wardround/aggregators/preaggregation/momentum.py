"""Momentum: the running average of each client's updates instead of the updates."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators.preaggregation.base import Parameters, PreContext, RowStep, register
from wardround.updates import Updates


@register("momentum")
class Momentum(RowStep):
    r"""Replace every row by the running average of its client's rows, kept at the server.

    .. math:: M_i \leftarrow \beta M_i + (1-\beta) U_i, \qquad Y_i = M_i

    A client's average starts at its first row and stands still while the client is away or its row is malformed.
    Averages of many rounds vary less than updates, so attackers have less room to hide in. The server keeps one row
    of D values per client, which is also part of a checkpoint.

    Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021 (there each worker
    keeps its own: `training.client_momentum`).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule = aggregators.create("mean", pre=[{"name": "momentum", "beta": 0.5}])
    >>> [rule.aggregate(Updates(torch.tensor([[value]]))).delta.item() for value in (1.0, 3.0, 3.0)]
    [1.0, 2.0, 2.5]
    """

    remembers_clients = True
    rows_per_client = 1

    class Params(Parameters):
        beta: float = Field(0.9, ge=0, lt=1)
        """Share of the past in the average."""

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.averages: dict[str, Tensor] = {}

    def transform(self, updates: Updates, context: PreContext) -> Tensor:
        beta = self.params.beta
        for row, client in zip(updates.matrix, updates.clients, strict=True):
            average = self.averages.get(client)
            if average is None or (average.shape, average.dtype) != (row.shape, row.dtype):
                self.averages[client] = row.clone()
            else:
                average.mul_(beta).add_(row, alpha=1 - beta)
        return torch.stack([self.averages[client] for client in updates.clients])

    def state_dict(self) -> dict[str, Any]:
        return {"averages": {client: average.clone() for client, average in self.averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averages = {client: average.clone() for client, average in state["averages"].items()}
