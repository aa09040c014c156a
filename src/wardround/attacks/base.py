"""The contract of an attack: what it may know, and the three places where it may lie.

An attack may poison a client's data before training, craft the update that is sent, and falsify the
metrics reported beside it. Each is a method that leaves everything honest unless an attack overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from wardround.errors import ParameterError
from wardround.registry import Configurable, Parameters, Registry

__all__ = ["Attack", "Knowledge", "KnowledgeLevel", "LocalData", "Parameters", "register", "registry"]


class KnowledgeLevel(StrEnum):
    """Whose honest updates of the round an attacker sees. The global models are known to every client."""

    OWN = "own"
    COLLUDERS = "colluders"
    OMNISCIENT = "omniscient"


@dataclass(frozen=True)
class Knowledge:
    """All that an attacker is given in a round. What is not in here, it cannot reach."""

    round: int
    global_weights: Tensor | None = None
    previous_global_weights: Tensor | None = None
    honest: Tensor | None = None
    """The honest updates this attacker may see: everyone's, the colluders' or (None) only its own."""
    clients: tuple[str, ...] = ()
    """The ids of the clients whose rows are crafted, in order: keys of whatever the attack remembers."""
    start: int = 1
    """The round in which the attack window opened."""
    total_clients: int | None = None
    """N, which every participant of the protocol may know."""
    seed: int = 0
    """Entropy of the run; randomness comes from `generator`, never from global state."""

    def generator(self, row: int) -> torch.Generator:
        """The random generator of one crafted row: the same for the same (seed, round, client)."""
        client = self.clients[row] if self.clients else f"row-{row}"
        entropy = [self.seed, self.round, *client.encode()]
        state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(state))


@dataclass(frozen=True)
class LocalData:
    """A client's training data as a data attack sees and returns it."""

    inputs: Tensor
    """n × …, ready for the model."""
    targets: Tensor
    """Class indices (n), or n × L zeros and ones where a sample has several labels."""
    num_classes: int
    """Number of classes; of labels where the task is multi-label."""
    multi_label: bool = False


class Attack(Configurable):
    """Base of all attacks. Honest in everything it does not override."""

    knowledge_levels: ClassVar[tuple[KnowledgeLevel, ...]] = (KnowledgeLevel.OWN,)
    """What the attack can work with; the first is the default."""
    poisons_data: ClassVar[bool] = False

    @property
    def knowledge(self) -> KnowledgeLevel:
        """What this attacker is given (a parameter where the attack leaves the choice)."""
        return KnowledgeLevel(getattr(self.params, "knowledge", self.knowledge_levels[0]))

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        """B×D honest updates of Byzantine clients → the B×D rows they send instead. `own` is not changed."""
        return own

    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        """The data the client trains on while the attack is on. Only called where `poisons_data`."""
        return data

    def report(self, metrics: Mapping[str, Tensor], knowledge: Knowledge) -> dict[str, Tensor]:
        """The metrics the Byzantine clients report, from those they measured (each of length B)."""
        return dict(metrics)

    def state_dict(self) -> dict[str, Any]:
        """All the attacker remembers between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ParameterError(f"{self.name} keeps no state, but was given {', '.join(state)}")


registry: Registry[Attack] = Registry("attack", "wardround.attacks")
register = registry.register
