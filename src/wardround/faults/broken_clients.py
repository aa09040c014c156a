"""A fault in a run: who is broken, in which rounds, and what they train on and send."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from wardround.attacks.base import LocalData
from wardround.errors import ContractError, ParameterError, did_you_mean
from wardround.faults.base import Fault
from wardround.faults.none import NoFault
from wardround.randomness import selection_generator, torch_generator
from wardround.registry import source_of

__all__ = ["BrokenClients", "draw_broken"]


def draw_broken(
    clients: Sequence[str], fraction: float, seed: int, attackers: Collection[str] = ()
) -> frozenset[str]:
    """`fraction` of all clients, rounded to the nearest whole client, drawn from those that do not attack.

    >>> names = [f"h{i}" for i in range(20)]
    >>> broken = draw_broken(names, 0.2, seed=0, attackers={"h0", "h1"})
    >>> len(broken), broken & {"h0", "h1"}
    (4, frozenset())
    """
    count = int(np.floor(fraction * len(clients) + 0.5))
    healthy = np.asarray([client for client in clients if client not in attackers], dtype=object)
    if count > len(healthy):
        raise ParameterError(
            f"fault.fraction={fraction:g} of {len(clients)} clients is {count}, but only {len(healthy)} do not attack"
        )
    rng = selection_generator(seed, "broken")
    return frozenset(healthy[rng.permutation(len(healthy))[:count]].tolist())


@dataclass
class BrokenClients:
    """A fault switched on for some clients in rounds start ≤ t < end.

    >>> import torch
    >>> from wardround import faults
    >>> broken = BrokenClients(faults.create("stale-update", delay=1), ["b"], start=2)
    >>> [broken.send(torch.tensor([[1.0 * t], [1.0 * t]]), ["a", "b"], t).flatten().tolist() for t in (1, 2, 3)]
    [[1.0, 1.0], [2.0, 1.0], [3.0, 2.0]]
    """

    fault: Fault
    clients: Collection[str] = ()
    start: int = 1
    end: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.clients = frozenset(() if self.fault.is_harmless else self.clients)

    @classmethod
    def none(cls) -> BrokenClients:
        """Every client works."""
        return cls(NoFault())

    def check(self, clients: Sequence[str], attackers: Collection[str]) -> None:
        """Every broken client named by hand must exist, and none of them may be an attacker."""
        for client in sorted(set(self.clients) - set(clients)):
            raise ParameterError(f"fault.clients: there is no {client!r}; {did_you_mean(client, clients)}")
        for client in sorted(set(self.clients) & set(attackers)):
            raise ParameterError(
                f"fault.clients: {client!r} attacks in this run; a client is an attacker or broken, not both"
            )

    def active(self, round: int) -> bool:
        """Is somebody broken in this round?"""
        return bool(self.clients) and self.start <= round and (self.end is None or round < self.end)

    def failing(self, round: int) -> frozenset[str]:
        """Who is broken in this round."""
        return frozenset(self.clients) if self.active(round) else frozenset()

    def spoil(self, client: str, data: LocalData) -> LocalData:
        """The data of a broken client while its fault is on: the same in every round."""
        spoilt = self.fault.spoil(data, torch_generator(self.seed, "fault", client))
        for name in ("inputs", "targets"):
            got, own = getattr(spoilt, name), getattr(data, name)
            if got.shape[1:] != own.shape[1:] or len(got) != len(spoilt.targets) or got.dtype != own.dtype:
                raise ContractError(
                    f"fault '{self.fault.name}'{source_of(type(self.fault))}: spoil returned {name} of shape "
                    f"{tuple(got.shape)} and type {got.dtype}, expected samples like those of shape "
                    f"{tuple(own.shape)} and type {own.dtype}"
                )
        return spoilt

    def send(self, matrix: Tensor, clients: Sequence[str], round: int) -> Tensor:
        """N × D trained updates (or N × (1 + C) × D) → what is sent; `matrix` is not changed."""
        broken = [row for row, client in enumerate(clients) if client in self.clients]
        if not broken or type(self.fault).send is Fault.send:
            return matrix
        failing, sent = self.active(round), matrix.clone()
        for row in broken:
            instead = self.fault.send(matrix[row], clients[row], failing)
            if failing:
                sent[row] = instead
        return sent

    def record(self) -> dict[str, Any]:
        """What a run records: which fault, who is broken, and when."""
        return {
            "fault": self.fault.name,
            "parameters": self.fault.params.model_dump(mode="json"),
            "broken": sorted(self.clients),
            "start": self.start,
            "end": self.end,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on. Spoilt data is not in it: the seed makes the same again."""
        return self.fault.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.fault.load_state_dict(state)
