"""Practice: rounds that the server makes itself, so that it knows who attacks in them.

The honest rows are the server's own training on resamples of its root data; the attackers are planted by
the attack library. Nothing here, and nothing that learns from it, knows anything of the run's attackers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.kernels import squared_norms
from wardround.aggregators._math.projection import Projection
from wardround.aggregators.base import PracticeGround
from wardround.aggregators.fedbnp.agent import Agent, Transitions, credited, explored
from wardround.aggregators.fedbnp.attention import LabelledRounds
from wardround.aggregators.fedbnp.features import Geometry, measure, measure_changed, standardised
from wardround.aggregators.fedbnp.fingerprints import CANDIDATES, Fingerprints, take_fingerprints
from wardround.aggregators.fedbnp.memory import Memory
from wardround.aggregators.fedbnp.shapley import temporary_matrix
from wardround.aggregators.fedbnp.trust import shares
from wardround.aggregators.fedbnp.vae import Vae, comparable
from wardround.memory import return_free_memory
from wardround.randomness import numpy_generator, torch_generator

__all__ = ["PRACTICE_ATTACKS", "Practice", "PracticeRound", "labelled_rounds", "transitions"]

NO_ATTACK = "none"
PRACTICE_ATTACKS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "scaling": ("scaling", {}),
    "partial-scaling": ("partial-scaling", {}),
    "sign-flip": ("sign-flip", {"scale": 1.0}),
    "additive-noise": ("additive-noise", {}),
    "label-flip": ("label-flip", {}),
    "noise": ("noise", {}),
    "alie": ("alie", {}),
    "ipm": ("ipm", {}),
}
"""What the server practises on: the FedBNP document's five attacks, and three that hide better."""


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
    """K × P: what each client's own trust earned."""


@dataclass(frozen=True)
class Practice:
    """The server's training ground in one round of the run."""

    practice_ground: PracticeGround
    round: int
    global_weights: Tensor
    projection: Projection
    sizes: list[int]
    """Samples of each hospital of a made-up federation."""
    draws: int
    """Made-up rounds of a federation."""
    permutations: int
    tries: int
    """Trusts that are tried in a made-up round."""

    def honest_rows(self, group: int) -> Tensor:
        """What honest updates look like, as the autoencoder sees them: none attacks in this federation."""
        parts = [torch.zeros(0, self.projection.outputs)]
        for draw in range(self.draws):
            rows = self._honest(group, draw)
            if rows is not None:
                seen = measure(rows, None, self.projection)
                parts.append(comparable(seen.projected, float(seen.norm.quantile(0.5))))
            del rows  # before the next ones are made
            return_free_memory()
        return torch.cat(parts)

    def episodes(
        self, group: int, vae: Vae, agent: Agent, pasts: dict[str, Memory]
    ) -> list[list[PracticeRound]]:
        """One episode per attack: the same made-up federation, draw after draw, with that attack planted.

        `pasts` has what is remembered of these hospitals under each attack, and is added to. In some episodes
        the attackers sleep through the first draw of all: they then have an honest past.
        """
        rng = numpy_generator(self.practice_ground.seed, "practice", group)
        starts = dict(zip(pasts, rng.integers(0, min(2, self.draws), len(pasts)).tolist(), strict=True))
        episodes: dict[str, list[PracticeRound]] = {name: [] for name in pasts}
        for draw in range(self.draws):
            rows = self._honest(group, draw)
            reference = self.practice_ground.reference(self.round, group, draw)
            if rows is None or not _finite(reference[None]):
                continue
            calm = measure(rows, reference, self.projection)
            for name, past in pasts.items():
                asleep = name == NO_ATTACK or (not past.index and starts[name] > 0)
                for byzantine in self._planted(rows, NO_ATTACK if asleep else name, group, draw):
                    seen = calm
                    if not asleep:
                        seen = measure_changed(calm, rows, byzantine, reference, self.projection)
                    played = self._round(rows, seen, byzantine, past, vae, agent, (group, draw))
                    episodes[name].append(played)
            del rows, reference  # before the next ones are made
            return_free_memory()
        return [episode for episode in episodes.values() if episode]

    def _honest(self, group: int, draw: int) -> Tensor | None:
        """The made-up hospitals' honest updates; None where the server's training went wrong."""
        rows = self.practice_ground.root_updates(self.round, len(self.sizes), group, draw, self.sizes)
        return rows if _finite(rows) else None

    def _planted(self, rows: Tensor, attack: str, group: int, draw: int) -> Iterator[Tensor]:
        """Put the attackers' rows in, hand over who they are, and put the honest rows back.

        In place, because rows may be long; nothing is handed over where an attack's rows are not finite: these
        would have been dropped.
        """
        if attack == NO_ATTACK:
            yield torch.zeros(len(rows), dtype=torch.bool)
            return
        byzantine, crafted = self.practice_ground.plant(rows, attack, self.round, group, draw, self.sizes)
        if not _finite(crafted):
            return
        rows_of_attackers = byzantine.nonzero().flatten()
        saved = temporary_matrix(len(rows_of_attackers), rows)
        torch.index_select(rows, 0, rows_of_attackers, out=saved)
        rows[byzantine] = crafted.to(rows.dtype)
        del crafted
        try:
            yield byzantine
        finally:
            rows[byzantine] = saved
            return_free_memory()

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
        practice_ground = self.practice_ground
        # The same draws for every attack on the same rows: what differs is the attack's doing.
        generator = torch_generator(practice_ground.seed, "practice", self.round, *where)
        prints = take_fingerprints(
            rows, geometry, self.global_weights, practice_ground, generator, self.permutations, tolerance=0.0
        )
        table = prints.table(vae)
        tokens = standardised(table, torch.tensor(self.sizes)).float()
        names = [f"practice-{i}" for i in range(len(rows))]
        past, known = memory.recall(names)
        states = prints.states(memory.mean_with(names, tokens), self.round / max(practice_ground.rounds, 1))
        memory.store(names, tokens)
        actions = explored(agent.policy(states), self.tries, generator)
        gains = self._gains(rows, actions, prints)
        return PracticeRound(
            tokens, past, known, states, byzantine, actions, credited(actions, byzantine, gains)
        )

    def _gains(self, rows: Tensor, actions: Tensor, prints: Fingerprints) -> Tensor:
        """ΔAcc on the validation samples, were the model moved with each of these trusts."""
        weights = torch.stack([shares(action) for action in actions]).to(rows.dtype)
        at_once = max(1, CANDIDATES // rows.shape[1])
        room = temporary_matrix(min(at_once, len(weights)), rows)
        values = [
            self.practice_ground.value(torch.mm(some, rows, out=room[: len(some)]).add_(self.global_weights))
            for some in weights.split(at_once)
        ]
        return torch.cat(values).float() - prints.metric


def _finite(rows: Tensor) -> bool:
    return bool(torch.isfinite(squared_norms(rows)).all())


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
                    now.rewards.flatten(),
                    following.repeat(tries, 1),
                    torch.full((tries * clients,), after is None),
                )
            )
    return Transitions.joined(parts)
