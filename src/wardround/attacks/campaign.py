"""An attack in a run: who is Byzantine, when they strike, and that they see only what they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, LocalData
from wardround.errors import ParameterError, did_you_mean

__all__ = ["Campaign", "draw_byzantine"]


def draw_byzantine(clients: Sequence[str], fraction: float, seed: int) -> frozenset[str]:
    """`fraction` of the clients, rounded to the nearest whole client, drawn from the seed.

    >>> len(draw_byzantine([f"h{i}" for i in range(20)], 0.2, seed=0))
    4
    """
    count = int(np.floor(fraction * len(clients) + 0.5))
    rng = np.random.default_rng([seed, *b"byzantine"])
    return frozenset(np.asarray(clients, dtype=object)[rng.permutation(len(clients))[:count]].tolist())


@dataclass
class Campaign:
    """An attack switched on for some clients in rounds start ≤ t < end.

    This is where knowledge is enforced: an attack that knows only its own update is called with one row
    at a time and nothing else; colluders get each other's rows; only an omniscient one gets everyone's.
    """

    attack: Attack
    byzantine: frozenset[str]
    start: int = 1
    end: int | None = None
    seed: int = 0
    _poisoned: dict[str, LocalData] = field(default_factory=dict, repr=False)

    def check(self, clients: Sequence[str]) -> None:
        """Every Byzantine client named by hand must exist."""
        for client in sorted(self.byzantine - set(clients)):
            raise ParameterError(f"attack.clients: there is no {client!r}; {did_you_mean(client, clients)}")

    def active(self, round: int) -> bool:
        """Is the window open?"""
        return bool(self.byzantine) and self.start <= round and (self.end is None or round < self.end)

    def poison(self, client: str, data: LocalData, round: int) -> LocalData:
        """The data this client trains on this round. A client's copy is poisoned once and kept."""
        if not (self.attack.poisons_data and client in self.byzantine and self.active(round)):
            return data
        if client not in self._poisoned:
            entropy = np.random.SeedSequence([self.seed, *b"poison", *client.encode()])
            state = int(entropy.generate_state(1, np.uint64)[0])
            self._poisoned[client] = self.attack.poison(data, torch.Generator().manual_seed(state))
        return self._poisoned[client]

    def strike(
        self,
        matrix: Tensor,
        clients: Sequence[str],
        metrics: Mapping[str, Tensor],
        round: int,
        global_weights: Tensor,
        previous_global_weights: Tensor | None,
        total_clients: int,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the clients send: honest rows and metrics in, those of the Byzantine ones replaced."""
        rows = [i for i, client in enumerate(clients) if client in self.byzantine]
        if not rows or not self.active(round):
            return matrix, dict(metrics)
        common: dict[str, Any] = {
            "round": round,
            "global_weights": global_weights,
            "previous_global_weights": previous_global_weights,
            "start": self.start,
            "total_clients": total_clients,
            "seed": self.seed,
        }
        level = self.attack.knowledge
        # One call a client for `own`: what an attack is not handed, it cannot use.
        groups = [[row] for row in rows] if level is KnowledgeLevel.OWN else [rows]
        sent, told = matrix.clone(), {name: values.clone() for name, values in metrics.items()}
        for group in groups:
            own = matrix[group]
            honest = {
                KnowledgeLevel.OWN: None,
                KnowledgeLevel.COLLUDERS: own,
                KnowledgeLevel.OMNISCIENT: matrix,
            }[level]
            knowledge = Knowledge(honest=honest, clients=tuple(clients[i] for i in group), **common)
            sent[group] = self.attack.craft(own, knowledge).to(matrix.dtype)
            reported = self.attack.report({name: values[group] for name, values in metrics.items()}, knowledge)
            for name, values in reported.items():
                told[name][group] = values.to(told[name].dtype)
        return sent, told
