"""One federation in one process: a round after the other, any rule, any attack, any engine.

The loop knows the contracts of the other rooms and none of their members. It is both halves of a round, the
server's and the clients', in one place.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator
from wardround.attacks.base import Defence
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset
from wardround.datasets.partition import Assignment
from wardround.federation.client_half import ClientHalf, objective_of
from wardround.federation.rounds import RoundResult, Schedule, peak_memory_mb, timed
from wardround.federation.server_half import ServerHalf
from wardround.privacy.params import PrivacyParams
from wardround.privacy.protection import Protection
from wardround.randomness import numpy_generator
from wardround.training.base import ClientData, Trainer, TrainingParams
from wardround.updates import Aggregation, Updates

__all__ = ["Federation", "RoundResult", "Schedule", "client_data", "objective_of", "participants"]


def client_data(dataset: Dataset, assignment: Assignment) -> dict[str, ClientData]:
    """Each client's share of the training split."""
    return {
        client: ClientData(dataset.train.inputs, torch.from_numpy(rows), dataset.train.targets[rows])
        for client, rows in zip(assignment.clients, assignment.train, strict=True)
    }


def participants(clients: tuple[str, ...], per_round: int, seed: int, round: int) -> tuple[str, ...]:
    """Who takes part in a round: `per_round` of the clients, drawn from the seed."""
    if per_round >= len(clients):
        return clients
    rng = numpy_generator(seed, "participation", round)
    return tuple(clients[i] for i in sorted(rng.permutation(len(clients))[:per_round]))


class Federation(ServerHalf, ClientHalf):
    """The state of a run and the one step it is made of."""

    def __init__(
        self,
        dataset: Dataset,
        assignment: Assignment,
        model: nn.Module,
        rule: Aggregator,
        campaign: Campaign,
        trainer: Trainer,
        training: TrainingParams,
        schedule: Schedule,
        privacy: PrivacyParams | None = None,
    ) -> None:
        self.dataset, self.assignment = dataset, assignment
        self.clients = assignment.clients
        campaign.check(self.clients)
        self.per_round = max(1, math.floor(schedule.participation * len(self.clients) + 0.5))
        rule.check(self.per_round)
        data = client_data(dataset, assignment)
        ClientHalf.__init__(self, dataset, data, campaign, trainer, training, schedule.rounds, schedule.seed)
        ServerHalf.__init__(self, dataset, model, rule, campaign, trainer, training, schedule)
        self.protection = Protection(
            privacy or PrivacyParams(), rule, self.clients, self.layout.size, schedule.seed
        )
        self.protection.check_cohort(self.per_round)

    def step(self, round: int) -> RoundResult:
        """One round: the model moves on by one aggregated update."""
        seconds: dict[str, float] = {}
        chosen = self._participants(round)
        samples = {client: len(self.data[client]) for client in chosen}
        releases = self.protection.releases(samples, self.training.batch_size, self.training.epochs)
        self.protection.before(round, releases)
        with timed(seconds, "train"):
            matrix, loss, root_update = self._train(chosen, round)
            matrix = self.protection.noise(matrix, chosen, round)
        with timed(seconds, "attack"):
            matrix, metrics = self.campaign.strike(
                matrix,
                chosen,
                {"loss": loss},
                round,
                self.weights,
                self.previous_weights,
                total_clients=len(self.clients),
                defence=self._defence(matrix, chosen, loss, round, root_update),
            )
        updates = self._updates(matrix, chosen, metrics)
        with timed(seconds, "aggregate"):
            result = self.protection.aggregate(
                updates, round, lambda sent: self._aggregate(self.rule, sent, round, root_update)
            )
        told = self._settle(round, updates, result, seconds)
        told.privacy = self.protection.after(chosen, releases)
        with timed(seconds, "evaluate"):
            if self.schedule.evaluates(round):
                self._judge(told)
        told.memory_mb = peak_memory_mb()
        return told

    def _updates(self, matrix: Tensor, chosen: tuple[str, ...], metrics: dict[str, Tensor]) -> Updates:
        return Updates(matrix, chosen, [len(self.data[c]) for c in chosen], metrics, self.layout)

    def _defence(
        self, matrix: Tensor, chosen: tuple[str, ...], loss: Tensor, round: int, root: Tensor | None
    ) -> Defence | None:
        """What an attacker that knows the defender may ask: the round's result, were these rows sent."""
        if not self.campaign.attack.knows_defence:
            return None
        byzantine = [i for i, client in enumerate(chosen) if client in self.campaign.byzantine]

        def answer(crafted: Tensor) -> Aggregation:
            rows = matrix.clone()
            rows[byzantine] = crafted.to(rows.dtype)
            rule = copy.deepcopy(self.rule)  # asking must not teach the real rule anything
            return self._aggregate(rule, self._updates(rows, chosen, {"loss": loss}), round, root)

        return answer

    def _participants(self, round: int) -> tuple[str, ...]:
        return participants(self.clients, self.per_round, self.schedule.seed, round)

    def _train(self, chosen: tuple[str, ...], round: int) -> tuple[Tensor, Tensor, Tensor | None]:
        root = self.root_tasks(round)
        matrix, loss = self.train_clients(chosen, round, self.rule.client_policy, root)
        own = matrix[-1] if root else None
        return matrix[: len(chosen)], loss[: len(chosen)], own

    def _judge(self, told: RoundResult, weights: Tensor | None = None) -> None:
        if self.local_batch_norm:
            told.per_client = {
                client: self._evaluate(self._start_of(client), self.dataset.test, rows)
                for client, rows in zip(self.clients, self.assignment.test, strict=True)
            }
            weights = self.weights.clone()
            weights[self.layout.batch_norm_mask] = torch.stack([*self.local_batch_norm.values()]).mean(0)
        elif told.round == self.schedule.rounds:
            told.per_client = {
                client: self._evaluate(self.weights, self.dataset.test, rows)
                for client, rows in zip(self.clients, self.assignment.test, strict=True)
            }
        super()._judge(told, weights)

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on."""
        return {
            **self.server_state(),
            "local_batch_norm": dict(self.local_batch_norm),
            "attack": self.campaign.state_dict(),
            "privacy": self.protection.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the round whose state this is."""
        self.load_server_state(state)
        self.local_batch_norm = dict(state["local_batch_norm"])
        self.campaign.load_state_dict(state["attack"])
        self.protection.load_state_dict(state.get("privacy", {}))
