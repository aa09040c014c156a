"""The contract of an attack: what it may know, and the three places where it may lie.

An attack may poison a client's data before training (`DataAttack`), craft the update that is sent (`Attack`), and
falsify the metrics reported beside it (`MetricsAttack`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from wardround.attacks.search_space import FIXED, Choice, Draw, Range, draw_parameters
from wardround.errors import ParameterError
from wardround.randomness import torch_generator
from wardround.registry import Configurable, Parameters, Registry
from wardround.updates import Aggregation

__all__ = [
    "FIXED",
    "Attack",
    "Choice",
    "DataAttack",
    "Defence",
    "HonestUpdate",
    "Knowledge",
    "KnowledgeLevel",
    "LocalData",
    "MetricsAttack",
    "OutcomePart",
    "Parameters",
    "Range",
    "describe",
    "register",
    "registry",
]

Defence = Callable[[Tensor], Aggregation]
"""B×D crafted rows → what a copy of the defender's rule would make of the round if those were sent."""


class KnowledgeLevel(StrEnum):
    """Whose honest updates of the round an attacker sees. The global models are known to every client."""

    OWN = "own"
    COLLUDERS = "colluders"
    OMNISCIENT = "omniscient"


@dataclass(frozen=True)
class OutcomePart:
    """Which outcome the rows are parts of, where updates are split by outcome."""

    index: int
    outcomes: int
    """How many there are."""
    is_rarest: bool
    """Have the clients fewer patients of it than of any other?"""


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
    visible: tuple[str, ...] = ()
    """The ids of the clients behind the rows of `honest`, where they are known."""
    own_rows: tuple[int, ...] | None = None
    """Which rows of `honest` belong to the attackers themselves; None: found by comparing the rows."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """What the visible clients honestly measured, one value per row of `honest` (of `own` where that is None)."""
    defence: Defence | None = None
    """A copy of the defender's rule to try rows on; only for attacks that declare `knows_defence`."""
    outcome: OutcomePart | None = None
    """Which outcome the rows are parts of; None: they are whole updates."""

    def generator(self, row: int) -> torch.Generator:
        """The random generator of one crafted row: the same for the same (seed, round, client)."""
        return torch_generator(self.seed, "attack", self.round, self.client(row))

    def client(self, row: int) -> str:
        """The id of the client whose row is crafted at this place."""
        return self.clients[row] if self.clients else f"row-{row}"

    def known(self, own: Tensor) -> Tensor:
        """Every honest update the attacker sees, its own included: `honest`, or `own` where it sees no more.

        Attackers that craft together know at least each other's rows.
        """
        return own if self.honest is None else self.honest

    def others(self, own: Tensor) -> Tensor:
        """The visible updates of clients that are not crafted for; none where only `own` is visible."""
        return self.known(own)[self.other_rows(own)]

    def other_rows(self, own: Tensor) -> list[int]:
        """The rows of `known` that are not the attackers' own."""
        if self.honest is None:
            return []
        if self.own_rows is not None:
            mine = set(self.own_rows)
            return [row for row in range(len(self.honest)) if row not in mine]
        # A stranger's call may not say whose rows are whose: a row equal to one of ours is ours.
        candidates = (self.honest[:, None, :64] == own[None, :, :64]).all(2)
        return [
            row
            for row in range(len(self.honest))
            if not any(torch.equal(self.honest[row], own[j]) for j in candidates[row].nonzero().flatten())
        ]

    def last_global_update(self) -> Tensor | None:
        """w − w_prev, the last step of the global model as every client can compute it."""
        if self.global_weights is None or self.previous_global_weights is None:
            return None
        return self.global_weights - self.previous_global_weights


@dataclass(frozen=True)
class LocalData:
    """A client's training data as a data attack sees and returns it."""

    inputs: Tensor
    """n × …, ready for the model."""
    targets: Tensor
    """Class indices (n), n × L zeros and ones where a sample has several labels, or n signed times of a survival task
    (minus: censored)."""
    num_classes: int
    """Number of classes; of labels where the task is multi-label."""
    multi_label: bool = False


class Attack(Configurable, ABC):
    """Base of all attacks. An attack implements `craft`; in everything else it is honest unless it overrides it."""

    knowledge_levels: ClassVar[tuple[KnowledgeLevel, ...]] = (KnowledgeLevel.OWN,)
    """What the attack can work with; the first is the default."""
    knows_defence: bool = False
    """The attacker has a copy of the defender's rule, its state included."""
    poisons_data: bool = False
    observes: bool = False
    """The attacker studies its own honest updates in every round, also while it does not strike."""
    is_harmless: ClassVar[bool] = False
    """Nobody attacks: clients that are given it are not Byzantine."""
    is_gradual: ClassVar[bool] = False
    """The attack gains strength over several rounds, so that no single round stands out."""

    @property
    def knowledge(self) -> KnowledgeLevel:
        """What this attacker is given (a parameter where the attack leaves the choice)."""
        return KnowledgeLevel(getattr(self.params, "knowledge", self.knowledge_levels[0]))

    @classmethod
    def search(cls, draw: Draw) -> dict[str, Any]:
        """Parameters as `draw` picks them, each out of the range it declares."""
        return draw_parameters(cls.Params, draw)

    def require_global_weights(self, knowledge: Knowledge, own: Tensor) -> Tensor:
        """The global model (D values) in the precision of `own`, for attacks on parameters θ = w + g, not updates g."""
        if knowledge.global_weights is None:
            raise ParameterError(
                f"attack '{self.name}' with of: parameters needs the global model: Knowledge(global_weights=…)"
            )
        return knowledge.global_weights.reshape(-1).to(own.dtype)

    def assign(self, clients: Sequence[str]) -> list[tuple[Attack, tuple[str, ...]]]:
        """Who does what: the attack itself for all, unless it is a mixture."""
        return [(self, tuple(clients))]

    @property
    def stealth(self) -> float:
        """Share of an attacker's training loss that is the distance from the global model (see `ClientTask`)."""
        return 0.0

    @property
    def backdoors(self) -> tuple[Any, ...]:
        """The attacks whose success is measured on triggered test samples (see `backdoor`)."""
        return ()

    def observe(self, own: Tensor, knowledge: Knowledge) -> None:
        """See one's own honest rows of a round. Called before `craft`, and outside the window too."""

    @abstractmethod
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        """B×D honest updates of Byzantine clients → the B×D rows they send instead. `own` is not changed."""

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
        """Continue from a saved state."""
        if state:
            raise ParameterError(f"{self.name} keeps no state, but was given {', '.join(state)}")


class HonestUpdate(Attack):
    """An attack whose clients send the updates that they trained."""

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        return own


class DataAttack(HonestUpdate):
    """An attack whose clients train on poisoned data, and send what they learnt from it."""

    poisons_data = True

    @abstractmethod
    def poison(self, data: LocalData, generator: torch.Generator) -> LocalData:
        """The data the client trains on while the attack is on: as many samples, of the same shape."""


class MetricsAttack(HonestUpdate):
    """An attack whose clients train and send honestly, and lie about the metrics that they report."""

    @abstractmethod
    def report(self, metrics: Mapping[str, Tensor], knowledge: Knowledge) -> dict[str, Tensor]:
        """The metrics the Byzantine clients report, from those they measured (each of length B)."""


registry: Registry[Attack] = Registry("attack", "wardround.attacks", base=Attack)
register = registry.register


def describe(name: str) -> dict[str, Any]:
    """What listings show of an attack: what it does, what it may know, its parameters and defaults.

    >>> entry = describe("alie")
    >>> entry["knowledge"], entry["lies_in"], entry["parameters"]["k"]
    (['omniscient', 'colluders'], ['update'], 2.5)
    """
    attack = registry.get(name)
    honest = {"data": Attack.poison, "update": HonestUpdate.craft, "metrics": Attack.report}
    return {
        "name": name,
        "summary": (attack.__doc__ or "").strip().split("\n")[0],
        "knowledge": [level.value for level in attack.knowledge_levels],
        "knows_defence": attack.knows_defence,
        "lies_in": [
            place for place, method in honest.items() if getattr(attack, method.__name__) is not method
        ],
        "parameters": registry.describe(name),
    }
