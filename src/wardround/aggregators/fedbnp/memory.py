"""What is remembered of each client: its fingerprints of the last rounds, and their mean over all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Memory"]

LONGEST_MEAN = 20
"""From so many rounds on, the mean forgets: each new round counts one twentieth."""


class Memory:
    """The last `rounds` fingerprints of every client seen so far, the latest first, and then their mean.

    What a client did in one round may say little; what it has always done says more. The mean is over all
    rounds the client took part in, and becomes a slowly forgetting one after twenty.

    >>> memory = Memory(rounds=2, features=1)
    >>> memory.store(["a", "b"], torch.tensor([[1.0], [2.0]]))
    >>> memory.store(["a"], torch.tensor([[3.0]]))
    >>> values, known = memory.recall(["a", "b", "c"])
    >>> values[:, :, 0].tolist()
    [[3.0, 1.0, 2.0], [2.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    >>> known.tolist()
    [[True, True, True], [True, False, True], [False, False, False]]
    """

    def __init__(self, rounds: int, features: int = 6) -> None:
        self.index: dict[str, int] = {}
        self.values = torch.zeros(0, rounds, features)
        self.means = torch.zeros(0, features)
        self.seen = torch.zeros(0, dtype=torch.long)
        """Rounds of each client."""

    def recall(self, clients: Sequence[str]) -> tuple[Tensor, Tensor]:
        """N × (L + 1) × F fingerprints, the mean last, and N × (L + 1) which of them there are."""
        rounds, features = self.values.shape[1:]
        values = torch.zeros(len(clients), rounds + 1, features)
        known = torch.zeros(len(clients), rounds + 1, dtype=torch.bool)
        ages = torch.cat([torch.arange(rounds), torch.zeros(1, dtype=torch.long)])
        for place, client in enumerate(clients):
            if client in self.index:
                row = self.index[client]
                values[place] = torch.cat([self.values[row], self.means[row : row + 1]])
                known[place] = ages < self.seen[row]
        return values, known

    def mean_with(self, clients: Sequence[str], fingerprints: Tensor) -> Tensor:
        """N × F: what the mean of each client is with this round."""
        means = fingerprints.float().clone()
        for place, client in enumerate(clients):
            if client in self.index:
                row = self.index[client]
                share = 1 / min(int(self.seen[row]) + 1, LONGEST_MEAN)
                means[place] = torch.lerp(self.means[row], means[place], share)
        return means

    def store(self, clients: Sequence[str], fingerprints: Tensor) -> None:
        """Remember this round; the oldest one is forgotten."""
        means = self.mean_with(clients, fingerprints)
        for client in clients:
            self.index.setdefault(client, len(self.index))
        new = len(self.index) - len(self.values)
        self.values = torch.cat([self.values, torch.zeros(new, *self.values.shape[1:])])
        self.means = torch.cat([self.means, torch.zeros(new, self.means.shape[1])])
        self.seen = torch.cat([self.seen, torch.zeros(new, dtype=torch.long)])
        rows = torch.tensor([self.index[client] for client in clients], dtype=torch.long)
        self.values[rows] = torch.cat([fingerprints[:, None].float(), self.values[rows, :-1]], 1)
        self.means[rows] = means
        self.seen[rows] += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and names."""
        return {
            "clients": list(self.index),
            "values": self.values.clone(),
            "means": self.means.clone(),
            "seen": self.seen.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.index = {client: row for row, client in enumerate(state["clients"])}
        self.values, self.means = state["values"].clone(), state["means"].clone()
        self.seen = state["seen"].clone()
