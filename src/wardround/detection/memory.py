"""What is remembered of each client: its fingerprints of the last rounds, the latest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Memory"]


class Memory:
    """The last `rounds` fingerprints of every client seen so far.

    >>> memory = Memory(rounds=2, features=1)
    >>> memory.store(["a", "b"], torch.tensor([[1.0], [2.0]]))
    >>> memory.store(["a"], torch.tensor([[3.0]]))
    >>> values, known = memory.recall(["a", "b", "c"])
    >>> values[:, :, 0].tolist(), known.tolist()
    ([[3.0, 1.0], [2.0, 0.0], [0.0, 0.0]], [[True, True], [True, False], [False, False]])
    """

    def __init__(self, rounds: int, features: int = 6) -> None:
        self.index: dict[str, int] = {}
        self.values = torch.zeros(0, rounds, features)
        self.known = torch.zeros(0, rounds, dtype=torch.bool)

    def recall(self, clients: Sequence[str]) -> tuple[Tensor, Tensor]:
        """N × L × F fingerprints and N × L which of them there are."""
        rounds, features = self.values.shape[1:]
        values = torch.zeros(len(clients), rounds, features)
        known = torch.zeros(len(clients), rounds, dtype=torch.bool)
        for place, client in enumerate(clients):
            if client in self.index:
                values[place] = self.values[self.index[client]]
                known[place] = self.known[self.index[client]]
        return values, known

    def store(self, clients: Sequence[str], fingerprints: Tensor) -> None:
        """Remember this round; the oldest one is forgotten."""
        rounds = self.values.shape[1]
        if rounds == 0:
            return
        for client in clients:
            self.index.setdefault(client, len(self.index))
        new = len(self.index) - len(self.values)
        values = torch.cat([self.values, torch.zeros(new, *self.values.shape[1:])])
        known = torch.cat([self.known, torch.zeros(new, rounds, dtype=torch.bool)])
        rows = torch.tensor([self.index[client] for client in clients], dtype=torch.long)
        values[rows] = torch.cat([fingerprints[:, None].float(), values[rows, :-1]], 1)
        known[rows] = torch.cat([torch.ones(len(rows), 1, dtype=torch.bool), known[rows, :-1]], 1)
        self.values, self.known = values, known

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and names."""
        return {"clients": list(self.index), "values": self.values.clone(), "known": self.known.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.index = {client: row for row, client in enumerate(state["clients"])}
        self.values, self.known = state["values"].clone(), state["known"].clone()
