"""Practice: rounds that the server makes itself, so that it knows who attacks in them.

The honest rows are the server's own training on resamples of its root data; the attackers are planted by
the attack library. Nothing here, and nothing that learns from it, knows anything of the run's attackers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators.base import ServerSide
from wardround.aggregators.kernels import squared_norms
from wardround.aggregators.projection import Projection
from wardround.detection.agent import Agent, Transitions, explored, reward
from wardround.detection.attention import LabelledRounds
from wardround.detection.features import Geometry, measure, measured_again, standardised
from wardround.detection.fingerprints import CANDIDATES, Fingerprints, take
from wardround.detection.memory import Memory
from wardround.detection.shapley import room_for
from wardround.detection.trust import shares
from wardround.detection.vae import Vae, comparable
from wardround.randomness import numpy_generator, torch_generator

__all__ = ["Practice", "PracticeRound", "labelled_rounds", "transitions"]

NO_ATTACK = "none"


@dataclass(frozen=True, eq=False)
class PracticeRound:
    """One made-up round as the detector saw it, what was tried in it, and who attacked."""

    tokens: Tensor
    memory: Tensor
    known: Tensor
    states: Tensor
    byzantine: Tensor
    actions: Tensor
    """K × P: the trusts that were tried."""
    rewards: Tensor
    """K."""


@dataclass(frozen=True)
class Practice:
    """The server's training ground in one round of the run."""

    server: ServerSide
    round: int
    global_weights: Tensor
    projection: Projection
    clients: int
    """Hospitals of a made-up federation."""
    draws: int
    """Made-up rounds of a federation."""
    memory_rounds: int
    permutations: int
    tolerance: float
    tries: int
    """Trusts that are tried in a made-up round."""

    def honest_rows(self, group: int) -> Tensor:
        """What honest updates look like, as the autoencoder sees them: none attacks in this federation."""
        parts = [torch.zeros(0, self.projection.outputs)]
        for draw in range(self.draws):
            pool = self._pool(group, draw)
            if pool is not None:
                seen = measure(pool, None, self.projection)
                parts.append(comparable(seen.projected, float(seen.norm.quantile(0.5))))
            del pool  # before the next one is made
        return torch.cat(parts)

    def episodes(self, group: int, vae: Vae, agent: Agent) -> list[list[PracticeRound]]:
        """One episode an attack: the same made-up federation, draw after draw, with that attack planted.

        In some episodes the attackers sleep through the first draw: they then have an honest past.
        """
        names = [NO_ATTACK, *self.server.attacks]
        rng = numpy_generator(self.server.seed, "practice", self.round, group)
        starts = dict(zip(names, rng.integers(0, min(2, self.draws), len(names)).tolist(), strict=True))
        memories = {name: Memory(self.memory_rounds) for name in names}
        told: dict[str, list[PracticeRound]] = {name: [] for name in names}
        for draw in range(self.draws):
            pool = self._pool(group, draw)
            if pool is None:
                continue
            reference, rows = pool[0], pool[1:]
            calm = measure(rows, reference, self.projection)
            for name in names:
                asleep = name == NO_ATTACK or draw < starts[name]
                for byzantine in self._planted(rows, NO_ATTACK if asleep else name, group, draw):
                    seen = calm
                    if not asleep:
                        seen = measured_again(calm, rows, byzantine, reference, self.projection)
                    told[name].append(
                        self._round(rows, seen, byzantine, memories[name], vae, agent, (group, draw))
                    )
            del pool, reference, rows  # before the next ones are made
        return [episode for episode in told.values() if episode]

    def _pool(self, group: int, draw: int) -> Tensor | None:
        """The made-up hospitals' honest updates; None where the server's training went wrong."""
        pool = self.server.root_updates(self.round, self.clients + 1, group, draw)
        return pool if bool(torch.isfinite(squared_norms(pool)).all()) else None

    def _planted(self, rows: Tensor, attack: str, group: int, draw: int) -> Iterator[Tensor]:
        """Put the attackers' rows in, hand over who they are, and put the honest rows back.

        In place, because rows may be long; nothing is handed over where an attack's rows are not finite: the
        guard would have dropped these.
        """
        if attack == NO_ATTACK:
            yield torch.zeros(len(rows), dtype=torch.bool)
            return
        byzantine, crafted = self.server.plant(rows, attack, self.round, group, draw)
        if not bool(torch.isfinite(squared_norms(crafted)).all()):
            return
        saved = rows[byzantine]
        rows[byzantine] = crafted.to(rows.dtype)
        del crafted
        try:
            yield byzantine
        finally:
            rows[byzantine] = saved

    def _round(
        self,
        rows: Tensor,
        geometry: Geometry,
        byzantine: Tensor,
        memory: Memory,
        vae: Vae,
        agent: Agent,
        where: tuple[int, int],
    ) -> PracticeRound:
        server = self.server
        # The same draws for every attack on the same rows: what differs is the attack's doing.
        generator = torch_generator(server.seed, "practice", self.round, *where)
        prints = take(
            rows, geometry, self.global_weights, server, generator, self.permutations, self.tolerance
        )
        table = prints.table(vae)
        tokens = standardised(table).float()
        names = [f"practice-{i}" for i in range(len(rows))]
        past, known = memory.recall(names)
        memory.store(names, tokens)
        states = prints.states(table, self.round / max(server.rounds, 1))
        actions = explored(agent.policy(states), self.tries, generator)
        gains = self._gains(rows, actions, prints)
        return PracticeRound(
            tokens, past, known, states, byzantine, actions, reward(actions, byzantine, gains)
        )

    def _gains(self, rows: Tensor, actions: Tensor, prints: Fingerprints) -> Tensor:
        """ΔAcc on the validation samples, were the model moved with each of these trusts."""
        weights = torch.stack([shares(action) for action in actions]).to(rows.dtype)
        at_once = max(1, CANDIDATES // rows.shape[1])
        room = room_for(min(at_once, len(weights)), rows)
        values = [
            self.server.value(torch.mm(some, rows, out=room[: len(some)]).add_(self.global_weights))
            for some in weights.split(at_once)
        ]
        return torch.cat(values).float() - prints.metric


def labelled_rounds(episodes: list[list[PracticeRound]]) -> LabelledRounds:
    """What the attention learns from."""
    rounds = [each for episode in episodes for each in episode]
    return LabelledRounds(
        torch.stack([each.tokens for each in rounds]),
        torch.stack([each.memory for each in rounds]),
        torch.stack([each.known for each in rounds]),
        torch.stack([~each.byzantine for each in rounds]),
    )


def transitions(episodes: list[list[PracticeRound]]) -> Transitions:
    """What the agent learns from: every try of every round, and the same hospitals one draw later."""
    parts = []
    for episode in episodes:
        for now, after in zip(episode, [*episode[1:], None], strict=True):
            following = now.states if after is None else after.states
            tries, clients = now.actions.shape
            parts.append(
                Transitions(
                    now.states.repeat(tries, 1),
                    now.actions.flatten(),
                    now.rewards.repeat_interleave(clients),
                    following.repeat(tries, 1),
                    torch.full((tries * clients,), after is None),
                )
            )
    return Transitions.joined(parts)
