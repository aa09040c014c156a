"""The detector: fingerprints in, two opinions on each client out; learns from practice, and rarely."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.projection import Projection
from wardround.aggregators.base import PracticeGround
from wardround.aggregators.fedbnp.agent import Agent
from wardround.aggregators.fedbnp.attention import DualAttention, LabelledRounds
from wardround.aggregators.fedbnp.features import MOST_SAMPLES, central_rows, measure, standardised
from wardround.aggregators.fedbnp.fingerprints import Fingerprints, take_fingerprints
from wardround.aggregators.fedbnp.memory import Memory
from wardround.aggregators.fedbnp.practice import NO_ATTACK, Practice, labelled_rounds, transitions
from wardround.aggregators.fedbnp.vae import Vae
from wardround.errors import DataError
from wardround.randomness import seed_for, torch_generator
from wardround.registry import Parameters
from wardround.threads import one_thread
from wardround.updates import Updates

__all__ = ["Detector", "DetectorParams", "Opinion"]

NETWORKS = ("vae", "attention", "agent")
MOST_HOSPITALS = 12
"""Of a made-up federation."""
LONG = 32_000_000
"""Bytes of a round's updates from which on made-up federations are smaller, to save memory."""


class DetectorParams(Parameters):
    """What can be set of the detector; the defaults are the document's where it gives one."""

    permutations: int = Field(10, ge=1)
    """M, orders of joining behind a Shapley value."""
    shapley_budget: float = Field(7.5, gt=2)
    """Evaluations a client of the round at most: 150 for 20 clients."""
    shapley_tolerance: float = Field(1e-4, ge=0)
    """A coalition worth as much as all within this ends its order."""
    vae_max_dim: int = Field(4096, ge=2)
    """Updates longer than this are projected to it."""
    vae_epochs: int = Field(25, ge=1)
    """Passes of the autoencoder over its rows, a time of practice."""
    vae_beta: float = Field(0.1, ge=0)
    """Weight of the autoencoder's divergence term."""
    vae_rounds: int = Field(3, ge=1)
    """Rounds whose central clients the autoencoder learns from, beside the server's own updates."""
    attention_epochs: int = Field(15, ge=1)
    """Passes of the attention over the made-up rounds."""
    memory_rounds: int = Field(5, ge=1)
    """Rounds of each client that the attention looks back on."""
    rl_lr: float = Field(0.001, gt=0)
    """Learning rate of the agent."""
    rl_gamma: float = Field(0.99, ge=0, le=1)
    """How much of a later reward counts for the agent."""
    rl_steps: int = Field(120, ge=1)
    """Steps of the agent after each made-up federation."""
    learn_every: int = Field(10, ge=1)
    """Rounds between two times of practice. The first is in the first round; two more come after a fifth and a
    half of this, because updates change most in the first rounds."""
    practice_clients: int | None = Field(None, ge=2)
    """Hospitals of a made-up federation; None: as many as the round has, of long updates a quarter; at most 12."""
    practice_groups: int = Field(5, ge=1)
    """Made-up federations that are attacked."""
    calm_groups: int = Field(4, ge=1)
    """Made-up federations without attackers, on which the attention's verdicts are calibrated."""
    practice_draws: int = Field(2, ge=1)
    """Made-up rounds of a federation in a time of practice. All federations practise in the first, half in a later."""
    practice_kept: int = Field(120, ge=1)
    """Made-up rounds, of this and earlier times of practice, that the attention learns from."""
    false_alarms: float = Field(0.04, ge=0, lt=1)
    """Share of the honest, in made-up rounds the attention did not learn from, that it distrusts."""
    practice_permutations: int = Field(2, ge=1)
    """M in made-up rounds, of which there are many."""
    tries: int = Field(4, ge=2)
    """Trusts that the agent tries in a made-up round."""


@dataclass(frozen=True, eq=False)
class Opinion:
    """What the detector thinks of a round, one value per client in the order of the updates."""

    features: Tensor
    """N × 6, as they are (not standardised)."""
    attention: Tensor
    """a_k; NaN where the detector has no attention."""
    policy: Tensor
    """π_k."""
    evaluations: int
    """Coalitions evaluated for the Shapley values."""


class Detector:
    """Keeps the networks and memories between rounds. `attention=False`: the agent alone."""

    def __init__(self, params: DetectorParams | None = None, attention: bool = True) -> None:
        self.params = params or DetectorParams()
        self.with_attention = attention
        self._build(size=0, seed=0)

    def _build(self, size: int, seed: int) -> None:
        """Begin with nothing learnt, for updates of this length (0: not known yet)."""
        self.size, self.seed = size, seed
        self.rounds = 0
        self.ready = False
        """Has there been a time of practice?"""
        self.times = 0
        """How many have there been?"""
        self.vae: Vae | None = None
        self.attention: DualAttention | None = None
        self.agent: Agent | None = None
        self.memory = Memory(self.params.memory_rounds)
        self.sizes: list[int] = []
        """Samples of the made-up hospitals."""
        self.pasts: dict[int, dict[str, Memory]] = {}
        """What is remembered of the made-up hospitals of each group, under each attack."""
        self.taught: LabelledRounds | None = None
        """Made-up rounds that the attention learns from."""
        self.honest: list[Tensor] = []
        """Rows of the last rounds' central clients, as the autoencoder sees them."""
        if size:
            self.vae = Vae(self._projection.outputs, seed=seed)
            self.agent = Agent(seed=seed)
            if self.with_attention:
                self.attention = DualAttention(memory=self.params.memory_rounds + 1, seed=seed)

    @one_thread()
    def examine(
        self,
        updates: Updates,
        round: int,
        global_weights: Tensor,
        reference: Tensor | None,
        practice_ground: PracticeGround,
    ) -> Opinion | None:
        """The round's opinion; None while the server could not practise (its own training is not finite)."""
        if self.size != updates.dimension:
            self._build(updates.dimension, practice_ground.seed)
        order = _canonical_order(updates)
        clients = [updates.clients[i] for i in order]
        prints = self._take(updates.matrix, round, global_weights, reference, practice_ground, order)
        self._remember_central(prints)
        if not self.sizes:
            self.sizes = self._hospitals(updates)
        if not self.ready or self._is_due():
            self.learn(practice_ground, round, global_weights)
        self.rounds += 1
        if not self.ready:
            return None
        assert self.agent is not None
        table = prints.table(self.vae)
        tokens = standardised(table, updates.num_samples[order]).float()
        states = prints.states(self.memory.mean_with(clients, tokens), round / max(practice_ground.rounds, 1))
        policy = self.agent.policy(states).double()
        attention = torch.full_like(policy, torch.nan)
        if self.attention is not None:
            past, known = self.memory.recall(clients)
            attention = self.attention.trust(tokens[None], past[None], known[None])[0].double()
        self.memory.store(clients, tokens)
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return Opinion(table[back], attention[back], policy[back], prints.evaluations)

    def learn(self, practice_ground: PracticeGround, round: int, global_weights: Tensor) -> None:
        """Practise once: autoencoder, agent and attention keep learning from made-up rounds."""
        p = self.params
        assert self.vae is not None
        assert self.agent is not None
        practice = Practice(
            practice_ground,
            round,
            global_weights,
            self._projection,
            self.sizes,
            p.practice_draws,
            p.practice_permutations,
            p.tries,
        )
        # The autoencoder learns from a federation of its own: it must not know the rows it is judged on.
        rows = torch.cat([practice.honest_rows(group=0), *self.honest])
        self.vae.fit(rows, p.vae_epochs, p.vae_beta, seed=seed_for(self.seed, "learn", round))
        episodes = []
        for group in self._groups():
            pasts = self.pasts.setdefault(
                group, _no_past(p.memory_rounds, (NO_ATTACK, *practice_ground.attacks))
            )
            episodes += practice.episodes(group, self.vae, self.agent, pasts)
            if episodes:
                seed = seed_for(self.seed, "learn", round, group)
                steps = p.rl_steps // 2 if self.ready else p.rl_steps
                self.agent.fit(transitions(episodes), max(1, steps), p.rl_lr, p.rl_gamma, seed=seed)
        if not episodes:
            return
        if self.attention is not None:
            self.taught = _added(self.taught, labelled_rounds(episodes), p.practice_kept)
            seed = seed_for(self.seed, "learn", round)
            epochs = -(-p.attention_epochs // 3) if self.ready else p.attention_epochs
            self.attention.fit(self.taught, epochs, seed=seed)
            self._calibrate(practice)
        self.ready = True
        self.times += 1

    def _calibrate(self, practice: Practice) -> None:
        """Set the attention's leniency by made-up rounds in which nobody attacks, which it did not learn from."""
        p = self.params
        assert self.attention is not None
        assert self.vae is not None
        assert self.agent is not None
        calm = []
        for group in range(p.practice_groups + 1, p.practice_groups + p.calm_groups + 1):
            pasts = self.pasts.setdefault(group, _no_past(p.memory_rounds, (NO_ATTACK,)))
            calm += practice.episodes(group, self.vae, self.agent, pasts)
        if calm:
            self.attention.calibrate(labelled_rounds(calm), p.false_alarms)

    def _is_due(self) -> bool:
        every = self.params.learn_every
        return self.rounds % every == 0 or self.rounds in (every // 5, every // 2)

    def _groups(self) -> list[int]:
        """The made-up federations of this time of practice: first all, then every other one in turn."""
        groups = range(1, self.params.practice_groups + 1)
        return [group for group in groups if not self.ready or (group + self.times) % 2 or len(groups) == 1]

    def _hospitals(self, updates: Updates) -> list[int]:
        """Sizes of the made-up hospitals: spread as those that the clients of the round report."""
        count, present = self.params.practice_clients, len(updates)
        if count is None:
            long = updates.matrix.nbytes > LONG
            count = max(2, min(present // 4 if long else present, MOST_HOSPITALS))
        reported = torch.nan_to_num(updates.num_samples.double(), nan=1.0).clamp(1, MOST_SAMPLES)
        spread = torch.linspace(0, 1, count, dtype=torch.float64)
        return [int(size) for size in reported.quantile(spread, interpolation="nearest")]

    @property
    def _projection(self) -> Projection:
        return Projection(self.size, self.params.vae_max_dim, seed_for(self.seed, "projection"))

    def _take(
        self,
        matrix: Tensor,
        round: int,
        global_weights: Tensor,
        reference: Tensor | None,
        practice_ground: PracticeGround,
        order: Sequence[int],
    ) -> Fingerprints:
        p = self.params
        return take_fingerprints(
            matrix,
            measure(matrix, reference, self._projection, order),
            global_weights.to(matrix.dtype),
            practice_ground,
            torch_generator(self.seed, "shapley", round),
            p.permutations,
            p.shapley_tolerance,
            int(p.shapley_budget * len(order)),
            order,
        )

    def _remember_central(self, prints: Fingerprints) -> None:
        central = central_rows(prints.table(None))
        self.honest = [*self.honest, prints.rows[central]][-self.params.vae_rounds :]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, numbers and names under flat keys: all that a later round depends on."""
        state: dict[str, Any] = {
            "rounds": self.rounds,
            "ready": self.ready,
            "times": self.times,
            "seed": self.seed,
            "size": self.size,
            "honest": torch.cat(self.honest) if self.honest else torch.zeros(0, 0),
            "honest_rows": [len(rows) for rows in self.honest],
            "sizes": list(self.sizes),
            "pasts": [[group, name] for group, pasts in self.pasts.items() for name in pasts],
        }
        for group, pasts in self.pasts.items():
            for name, past in pasts.items():
                state |= {f"past.{group}.{name}.{key}": value for key, value in past.state_dict().items()}
        if self.taught is not None:
            state |= {f"taught.{key}": value.clone() for key, value in vars(self.taught).items()}
        state |= {f"memory.{key}": value for key, value in self.memory.state_dict().items()}
        for name in NETWORKS:
            network = getattr(self, name)
            if network is not None:
                state |= {f"{name}.{key}": value.clone() for key, value in network.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""

        def of(name: str) -> dict[str, Any]:
            return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}

        try:
            self._build(int(state["size"]), int(state["seed"]))
            self.rounds, self.ready = int(state["rounds"]), bool(state["ready"])
            self.times = int(state["times"])
            self.honest = list(state["honest"].clone().split(state["honest_rows"])) if self.size else []
            self.memory.load_state_dict(of("memory"))
            self.sizes = [int(size) for size in state["sizes"]]
            for group, name in state["pasts"]:
                past = self.pasts.setdefault(int(group), {})[name] = Memory(self.params.memory_rounds)
                past.load_state_dict(of(f"past.{group}.{name}"))
            taught = of("taught")
            self.taught = LabelledRounds(**{k: v.clone() for k, v in taught.items()}) if taught else None
            for name in NETWORKS:
                network = getattr(self, name)
                if network is not None:
                    network.load_state_dict(of(name))
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"not the state of a detector with these parameters: {_first_line(error)}"
            ) from None

    def save(self, path: str | Path) -> None:
        """Write the detector to a file of plain tensors, numbers and names."""
        torch.save(self.state_dict(), path)

    def load(self, path: str | Path) -> None:
        """Continue from a file that `save` wrote. Nothing in the file is run: one that asks for it is refused."""
        try:
            state = torch.load(path, weights_only=True)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise DataError(f"{path} is not a saved detector: {_first_line(error)}") from None
        if not isinstance(state, dict):
            raise DataError(f"{path} is not a saved detector: it holds a {type(state).__name__}")
        self.load_state_dict(state)


def _no_past(rounds: int, attacks: Sequence[str]) -> dict[str, Memory]:
    return {name: Memory(rounds) for name in attacks}


def _added(before: LabelledRounds | None, new: LabelledRounds, most: int) -> LabelledRounds:
    return LabelledRounds.joined([new] if before is None else [before, new], max(1, most))


def _canonical_order(updates: Updates) -> list[int]:
    """The clients by the length of what they sent, then by name: an order that does not depend on theirs."""
    norms = updates.norms.tolist()
    return sorted(range(len(updates)), key=lambda i: (norms[i], updates.clients[i]))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
