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

from wardround.aggregators.base import ServerSide
from wardround.aggregators.projection import Projection
from wardround.detection.agent import Agent
from wardround.detection.attention import DualAttention
from wardround.detection.features import central_rows, measure, standardised
from wardround.detection.fingerprints import Fingerprints, take
from wardround.detection.memory import Memory
from wardround.detection.practice import Practice, labelled_rounds, transitions
from wardround.detection.vae import Vae
from wardround.errors import DataError
from wardround.randomness import seed_for, torch_generator
from wardround.registry import Parameters
from wardround.threads import one_thread
from wardround.updates import Updates

__all__ = ["Detector", "DetectorParams", "Opinion"]

NETWORKS = ("vae", "attention", "agent")


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
    rl_steps: int = Field(200, ge=1)
    """Steps of the agent after each made-up federation."""
    learn_every: int = Field(25, ge=1)
    """Rounds between two times of practice; the first is in the first round."""
    practice_clients: int = Field(8, ge=2)
    """Hospitals of a made-up federation."""
    practice_groups: int = Field(6, ge=1)
    """Made-up federations a time of practice."""
    practice_draws: int = Field(3, ge=1)
    """Made-up rounds of a federation."""
    practice_permutations: int = Field(2, ge=1)
    """M in made-up rounds, of which there are many."""
    tries: int = Field(4, ge=2)
    """Trusts that the agent tries in a made-up round."""


@dataclass(frozen=True, eq=False)
class Opinion:
    """What the detector thinks of a round, a value a client in the order of the updates."""

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
        self.rounds = 0
        self.ready = False
        """Has there been a time of practice?"""
        self.seed = 0
        self.size = 0
        self.vae: Vae | None = None
        self.attention: DualAttention | None = None
        self.agent: Agent | None = None
        self.memory = Memory(self.params.memory_rounds)
        self.honest: list[Tensor] = []
        """Rows of the last rounds' central clients, as the autoencoder sees them."""

    @one_thread()
    def examine(
        self,
        updates: Updates,
        round: int,
        global_weights: Tensor,
        reference: Tensor | None,
        server: ServerSide,
    ) -> Opinion | None:
        """The round's opinion; None while the server could not practise (its own training is not finite)."""
        if self.size != updates.dimension:
            self._build(updates.dimension, server.seed)
        order = _canonical_order(updates)
        clients = [updates.clients[i] for i in order]
        prints = self._take(updates.matrix, round, global_weights, reference, server, order)
        self._remember_central(prints)
        if not self.ready or self.rounds % self.params.learn_every == 0:
            self.learn(server, round, global_weights)
        self.rounds += 1
        if not self.ready:
            return None
        assert self.agent is not None
        table = prints.table(self.vae)
        tokens = standardised(table).float()
        policy = self.agent.policy(prints.states(table, round / max(server.rounds, 1))).double()
        attention = torch.full_like(policy, torch.nan)
        if self.attention is not None:
            past, known = self.memory.recall(clients)
            attention = self.attention.trust(tokens[None], past[None], known[None])[0].double()
        self.memory.store(clients, tokens)
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return Opinion(table[back], attention[back], policy[back], prints.evaluations)

    def learn(self, server: ServerSide, round: int, global_weights: Tensor) -> None:
        """A time of practice: autoencoder, agent and attention go on learning from made-up rounds."""
        p = self.params
        assert self.vae is not None
        assert self.agent is not None
        practice = Practice(
            server,
            round,
            global_weights,
            self._projection,
            p.practice_clients,
            p.practice_draws,
            p.memory_rounds,
            p.practice_permutations,
            p.shapley_tolerance,
            p.tries,
        )
        # The autoencoder learns from a federation of its own: it must not know the rows it is judged on.
        rows = torch.cat([practice.honest_rows(group=0), *self.honest])
        self.vae.fit(rows, p.vae_epochs, p.vae_beta, seed=seed_for(self.seed, "learn", round))
        episodes = []
        for group in range(1, p.practice_groups + 1):
            episodes += practice.episodes(group, self.vae, self.agent)
            if episodes:
                seed = seed_for(self.seed, "learn", round, group)
                self.agent.fit(transitions(episodes), p.rl_steps, p.rl_lr, p.rl_gamma, seed=seed)
        if not episodes:
            return
        if self.attention is not None:
            seed = seed_for(self.seed, "learn", round)
            self.attention.fit(labelled_rounds(episodes), p.attention_epochs, seed=seed)
        self.ready = True

    def _build(self, size: int, seed: int) -> None:
        self.__init__(self.params, self.with_attention)  # type: ignore[misc]
        self.size, self.seed = size, seed
        if not size:
            return
        self.vae = Vae(self._projection.outputs, seed=seed)
        self.agent = Agent(seed=seed)
        if self.with_attention:
            self.attention = DualAttention(memory_rounds=self.params.memory_rounds, seed=seed)

    @property
    def _projection(self) -> Projection:
        return Projection(self.size, self.params.vae_max_dim, seed_for(self.seed, "projection"))

    def _take(
        self,
        matrix: Tensor,
        round: int,
        global_weights: Tensor,
        reference: Tensor | None,
        server: ServerSide,
        order: Sequence[int],
    ) -> Fingerprints:
        p = self.params
        return take(
            matrix,
            measure(matrix, reference, self._projection, order),
            global_weights.to(matrix.dtype),
            server,
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
            "seed": self.seed,
            "size": self.size,
            "honest": torch.cat(self.honest) if self.honest else torch.zeros(0, 0),
            "honest_rows": [len(rows) for rows in self.honest],
        }
        state |= {f"memory.{key}": value for key, value in self.memory.state_dict().items()}
        for name in NETWORKS:
            network = getattr(self, name)
            if network is not None:
                state |= {f"{name}.{key}": value.clone() for key, value in network.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""

        def of(name: str) -> dict[str, Any]:
            return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}

        try:
            self._build(int(state["size"]), int(state["seed"]))
            self.rounds, self.ready = int(state["rounds"]), bool(state["ready"])
            self.honest = list(state["honest"].clone().split(state["honest_rows"])) if self.size else []
            self.memory.load_state_dict(of("memory"))
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
        """Go on from a file that `save` wrote. Nothing in the file is run: one that asks for it is refused."""
        try:
            state = torch.load(path, weights_only=True)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise DataError(f"{path} is not a saved detector: {_first_line(error)}") from None
        if not isinstance(state, dict):
            raise DataError(f"{path} is not a saved detector: it holds a {type(state).__name__}")
        self.load_state_dict(state)


def _canonical_order(updates: Updates) -> list[int]:
    """The clients by the length of what they sent, then by name: an order that does not depend on theirs."""
    norms = updates.norms.tolist()
    return sorted(range(len(updates)), key=lambda i: (norms[i], updates.clients[i]))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
