"""An update of an earlier round."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from wardround.faults.base import Fault, Parameters, register


@register("stale-update")
class StaleUpdate(Fault):
    """The hospital sends what it trained `delay` rounds ago: a full disk, a queue that is not emptied.

    Rounds in which it takes part are counted. Until there are so many, it sends the first update that it has.
    """

    class Params(Parameters):
        delay: int = Field(5, ge=1)
        """Rounds in which the hospital took part."""

    params: Params

    def __init__(self, params: Parameters | None = None) -> None:
        super().__init__(params)
        self.past: dict[str, list[Tensor]] = {}
        """Client → its last updates, oldest first, at most `delay` + 1."""

    def send(self, row: Tensor, client: str, failing: bool) -> Tensor:
        past = self.past.setdefault(client, [])
        past.append(row.clone())
        del past[: -self.params.delay - 1]
        return past[0]

    def state_dict(self) -> dict[str, Any]:
        return {"past": {client: list(rows) for client, rows in self.past.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.past = {client: list(rows) for client, rows in state["past"].items()}
