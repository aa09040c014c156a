"""An attack in a run: who is Byzantine, when they strike, and that they see only what they may."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from wardround.attacks.base import Attack, Defence, Knowledge, KnowledgeLevel, LocalData, OutcomePart
from wardround.errors import ContractError, ParameterError, did_you_mean
from wardround.randomness import selection_generator, torch_generator
from wardround.registry import source_of
from wardround.updates import Aggregation

__all__ = ["Campaign", "draw_byzantine"]


def draw_byzantine(clients: Sequence[str], fraction: float, seed: int) -> frozenset[str]:
    """`fraction` of the clients, rounded to the nearest whole client, drawn from the seed.

    >>> len(draw_byzantine([f"h{i}" for i in range(20)], 0.2, seed=0))
    4
    """
    count = int(np.floor(fraction * len(clients) + 0.5))
    rng = selection_generator(seed, "byzantine")
    return frozenset(np.asarray(clients, dtype=object)[rng.permutation(len(clients))[:count]].tolist())


@dataclass
class Campaign:
    """An attack switched on for some clients in rounds start ≤ t < end.

    This is where knowledge is enforced: an attack that knows only its own update is called with one row
    at a time and nothing else; colluders get each other's rows; only an omniscient one gets everyone's.
    In a mixture each part gets what that part may know.

    >>> import torch
    >>> from wardround import attacks
    >>> campaign = Campaign(attacks.create("sign-flip", scale=1), ["b"], start=2)
    >>> sent, _ = campaign.strike(torch.ones(2, 2), ["a", "b"], {}, 2, torch.zeros(2), None, 2)
    >>> sent.tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """

    attack: Attack
    byzantine: Collection[str]
    """A list keeps its order when a mixture deals out its parts; a set is put in an order drawn from the seed.
    Clients that are dealt no attack (`none`) are honest, and are not among them afterwards."""
    start: int = 1
    end: int | None = None
    seed: int = 0
    is_expected: bool = False
    """Somebody is meant to attack: a share above zero was asked for, even if it rounds to no client."""
    outcome: OutcomePart | None = None
    """Which outcome's parts the attackers craft; None: whole updates."""
    _poisoned: dict[str, LocalData] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.byzantine, Sequence):
            order = list(dict.fromkeys(self.byzantine))
        else:
            names = np.asarray(sorted(self.byzantine), dtype=object)
            order = selection_generator(self.seed, "order").permutation(names).tolist()
        self.parts = self.attack.assign(order)
        self._part_of = {
            client: part for part, clients in self.parts for client in clients if not part.is_harmless
        }
        self.byzantine = frozenset(self._part_of)

    def check(self, clients: Sequence[str]) -> None:
        """Every Byzantine client named by hand must exist, and an attack must have a client that plays it."""
        if not self.byzantine and not self.attack.is_harmless and self.is_expected:
            raise ParameterError(
                f"attack '{self.attack.name}' reaches nobody: its fraction of {len(clients)} clients is less than half "
                "a client; raise attack.fraction, or name attack.clients"
            )
        for client in sorted(set(self.byzantine) - set(clients)):
            raise ParameterError(f"attack.clients: there is no {client!r}; {did_you_mean(client, clients)}")

    def active(self, round: int) -> bool:
        """Is the window open?"""
        return bool(self.byzantine) and self.start <= round and (self.end is None or round < self.end)

    def record(self) -> dict[str, Any]:
        """What a run records about its attackers: who, when, what they do and what they know."""
        return {
            "attack": self.attack.name,
            "parameters": self.attack.params.model_dump(mode="json"),
            "knowledge": self.attack.knowledge.value,
            "knows_defence": self.attack.knows_defence,
            "byzantine": sorted(self.byzantine),
            "parts": [
                {"attack": part.name, "knowledge": part.knowledge.value, "clients": list(clients)}
                for part, clients in self.parts
            ],
            "start": self.start,
            "end": self.end,
        }

    def poison(self, client: str, data: LocalData, round: int) -> LocalData:
        """The data this client trains on this round. A client's copy is poisoned once and kept."""
        part = self._part_of.get(client)
        if part is None or not (part.poisons_data and self.active(round)):
            return data
        if client not in self._poisoned:
            poisoned = part.poison(data, torch_generator(self.seed, "poison", client))
            self._poisoned[client] = _checked_data(part, poisoned, data)
        return self._poisoned[client]

    def stealth(self, client: str, round: int) -> float:
        """Share of this client's training loss that keeps it near the global model; 0 for honest training."""
        part = self._part_of.get(client)
        return part.stealth if part is not None and self.active(round) else 0.0

    def strike(
        self,
        matrix: Tensor,
        clients: Sequence[str],
        metrics: Mapping[str, Tensor],
        round: int,
        global_weights: Tensor | None,
        previous_global_weights: Tensor | None,
        total_clients: int,
        defence: Defence | None = None,
        in_place: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Replace the rows and metrics of the Byzantine clients by what they send instead.

        Call it in every round, inside the window or not: some attackers study themselves beforehand.

        Args:
            matrix: N × D honest rows.
            clients: N ids.
            metrics: Name → N values that the clients measured.
            round: Number of the round.
            global_weights: D weights that the round started from.
            previous_global_weights: D weights that the last round started from; None in the first.
            total_clients: Clients of the federation, present or not.
            defence: Crafted rows of the Byzantine clients present, in the order of `clients` → what a copy of the
                defender's rule would make of the round; only for attacks that declare `knows_defence`.
            in_place: Overwrite the Byzantine rows of `matrix` itself once all are crafted, which saves a copy of
                the honest ones.

        Returns:
            N × D rows as they are sent, and the metrics as they are reported.
        """
        common = {
            "round": round,
            "global_weights": global_weights,
            "previous_global_weights": previous_global_weights,
            "start": self.start,
            "total_clients": total_clients,
            "seed": self.seed,
            "outcome": self.outcome,
        }
        reported = dict(metrics)
        crafted: list[tuple[list[int], Tensor]] = []
        for part, group, knowledge in self._calls(matrix, clients, metrics, crafted, common, defence):
            own = matrix[group]
            if part.observes:
                part.observe(own, knowledge)
            if not self.active(round):
                continue
            crafted.append((group, _checked_rows(part, part.craft(own, knowledge), own).to(matrix.dtype)))
            measured = {name: values[group] for name, values in metrics.items()}
            for name, values in _checked_metrics(part, part.report(measured, knowledge), measured).items():
                if reported[name] is metrics[name]:
                    reported[name] = reported[name].clone()
                reported[name][group] = values.to(reported[name].dtype)
        sent = matrix if in_place or not crafted else matrix.clone()
        for group, rows in crafted:
            sent[group] = rows
        return sent, reported

    def _calls(
        self,
        matrix: Tensor,
        clients: Sequence[str],
        metrics: Mapping[str, Tensor],
        crafted: list[tuple[list[int], Tensor]],
        common: Mapping[str, Any],
        defence: Defence | None,
    ) -> Iterator[tuple[Attack, list[int], Knowledge]]:
        """Which part is asked for which rows, and all it may know then. `crafted`: the rows made so far."""
        active = self.active(common["round"])
        byzantine = [i for i, client in enumerate(clients) if client in self._part_of]
        for part, _ in self.parts:
            rows = [i for i in byzantine if self._part_of[clients[i]] is part]
            if not rows or not (active or part.observes):
                continue
            shared = dict(common)
            if active and part.knows_defence:
                shared["defence"] = _defence_of_part(part, rows, byzantine, matrix, crafted, defence)
            for group, knowledge in _views(part.knowledge, rows, byzantine, matrix, clients, metrics, shared):
                yield part, group, knowledge

    def state_dict(self) -> dict[str, Any]:
        """All the attackers remember. Poisoned data is not in it: the seed makes the same again."""
        return self.attack.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.attack.load_state_dict(state)


def _checked_rows(part: Attack, rows: Tensor, own: Tensor) -> Tensor:
    if not isinstance(rows, Tensor) or rows.shape != own.shape:
        expected = f"a tensor of shape {tuple(own.shape)}, one row per client"
        raise ContractError(f"{_origin(part)}: craft returned {_shape(rows)}, expected {expected}")
    return rows


def _checked_metrics(
    part: Attack, reported: Mapping[str, Tensor], measured: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    if not isinstance(reported, Mapping) or not reported.keys() <= measured.keys():
        got = sorted(reported) if isinstance(reported, Mapping) else type(reported).__name__
        raise ContractError(
            f"{_origin(part)}: report returned {got}, expected a dict of what was measured: {sorted(measured)}"
        )
    for name, values in reported.items():
        if not isinstance(values, Tensor) or values.shape != measured[name].shape:
            expected = f"a tensor of shape {tuple(measured[name].shape)}, one value per client"
            raise ContractError(
                f"{_origin(part)}: report returned {name!r} as {_shape(values)}, expected {expected}"
            )
    return reported


def _checked_data(part: Attack, poisoned: LocalData, data: LocalData) -> LocalData:
    if not isinstance(poisoned, LocalData):
        raise ContractError(f"{_origin(part)}: poison returned {_shape(poisoned)}, expected a LocalData")
    for name in ("inputs", "targets"):
        got, own = getattr(poisoned, name), getattr(data, name)
        if not isinstance(got, Tensor) or got.shape != own.shape:
            raise ContractError(
                f"{_origin(part)}: poison returned {name} as {_shape(got)}, "
                f"expected a tensor of shape {tuple(own.shape)}, one entry per sample"
            )
    return poisoned


def _origin(part: Attack) -> str:
    return f"attack '{part.name}'{source_of(type(part))}"


def _shape(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _defence_of_part(
    part: Attack,
    rows: list[int],
    byzantine: list[int],
    matrix: Tensor,
    crafted: list[tuple[list[int], Tensor]],
    defence: Defence | None,
) -> Defence:
    """The defender's rule as one part of a mixture can try it: with its own rows only."""
    if defence is None:
        raise ParameterError(
            f"attack '{part.name}' is given the defender's rule, but strike(…) got no defence"
        )
    if rows == byzantine:
        return defence
    place = {row: i for i, row in enumerate(byzantine)}

    def of_part(tried: Tensor) -> Aggregation:
        # What the other parts send is what they have crafted so far: parts craft in their order.
        everyone = matrix[byzantine]
        for group, theirs in [*crafted, (rows, tried.to(matrix.dtype))]:
            everyone[[place[row] for row in group]] = theirs
        return defence(everyone)

    return of_part


def _views(
    level: KnowledgeLevel,
    rows: list[int],
    byzantine: list[int],
    matrix: Tensor,
    clients: Sequence[str],
    metrics: Mapping[str, Tensor],
    common: Mapping[str, Any],
) -> Iterator[tuple[list[int], Knowledge]]:
    """The rows an attack is asked for at once, and all it may know then."""
    # One call per client for `own`: what an attack is not handed, it cannot use.
    for group in [[row] for row in rows] if level is KnowledgeLevel.OWN else [rows]:
        seen = {
            KnowledgeLevel.OWN: group,
            KnowledgeLevel.COLLUDERS: byzantine,
            KnowledgeLevel.OMNISCIENT: list(range(len(matrix))),
        }[level]
        everyone = level is KnowledgeLevel.OMNISCIENT
        honest = None if level is KnowledgeLevel.OWN else matrix if everyone else matrix[seen]
        yield (
            group,
            Knowledge(
                honest=honest,
                clients=tuple(clients[i] for i in group),
                visible=tuple(clients[i] for i in seen),
                own_rows=None if honest is None else tuple(seen.index(row) for row in group),
                metrics={name: values[seen] for name, values in metrics.items()},
                **common,
            ),
        )
