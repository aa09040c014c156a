"""One federation in one process: a round after the other, any rule, any attack, any engine.

The loop knows the contracts of the other rooms and none of their members.
"""

from __future__ import annotations

import copy
import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator, sample_weights
from wardround.aggregators.kernels import weighted_sum
from wardround.attacks.base import Defence, LocalData
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset, Split, Task
from wardround.datasets.partition import Assignment
from wardround.errors import ConfigError
from wardround.federation.evaluation import evaluate, predict
from wardround.federation.protection import Protection
from wardround.federation.server import Server
from wardround.privacy.params import PrivacyParams
from wardround.randomness import numpy_generator, seed_for
from wardround.training.base import ClientData, ClientTask, Objective, Trainer, TrainingParams, learning_rate
from wardround.updates import Aggregation, Layout, Updates

__all__ = ["Federation", "RoundResult", "Schedule", "objective_of"]

ROOT = "server-root"


def objective_of(dataset: Dataset) -> Objective:
    """What a network is trained for on this dataset."""
    return Objective(dataset.task is Task.MULTICLASS, dataset.prepare, dataset.augment)


@dataclass(frozen=True)
class Schedule:
    """When what happens in a run."""

    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    server_lr: float = 1.0
    root_samples: int = 100
    seed: int = 0

    def evaluates(self, round: int) -> bool:
        """Every k-th round, and always the last."""
        return round % self.evaluate_every == 0 or round == self.rounds


@dataclass
class RoundResult:
    """What is told of a round."""

    round: int
    seconds: dict[str, float]
    clients: list[dict[str, Any]]
    metrics: dict[str, float] | None = None
    """On the test split, where the round has an evaluation."""
    validation: dict[str, float] | None = None
    per_client: dict[str, dict[str, float]] | None = None
    """Each client's own figures on its share of the test split: after the last round, and in every evaluated
    round where BatchNorm stays local."""
    skipped: str | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    privacy: dict[str, float] | None = None
    """What the run has spent so far, where it has differential privacy."""
    memory_mb: float = 0.0
    """Peak resident memory of the process so far."""


class Federation:
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
        self.dataset, self.assignment, self.model = dataset, assignment, model
        self.rule, self.campaign, self.trainer = rule, campaign, trainer
        self.training, self.schedule = training, schedule
        self.clients = assignment.clients
        campaign.check(self.clients)
        self.per_round = max(1, math.floor(schedule.participation * len(self.clients) + 0.5))
        rule.check(self.per_round)
        self.layout = Layout.of(model)
        self.tensors = model.state_dict()
        self.weights = self.layout.flatten(self.tensors).clone()
        self.previous_weights: Tensor | None = None
        self.local_batch_norm: dict[str, Tensor] = {}
        self.data = {
            client: ClientData(dataset.train.inputs, torch.from_numpy(rows), dataset.train.targets[rows])
            for client, rows in zip(self.clients, assignment.train, strict=True)
        }
        self.poisoned: dict[str, ClientData] = {}
        self.validation_rows, self.root = self._hold_back_root()
        self.server = self._own_side()
        self.protection = Protection(
            privacy or PrivacyParams(), rule, self.clients, self.layout.size, schedule.seed
        )
        self.protection.check_cohort(self.per_round)

    def _hold_back_root(self) -> tuple[Tensor, ClientData | None]:
        """The trusted samples come from validation, never from test or a client, and are not validated on."""
        split = self.dataset.validation
        order = torch.from_numpy(numpy_generator(self.schedule.seed, "root").permutation(len(split)))
        if not self.rule.needs_root_update:
            return order.sort().values, None
        root = order[: self.schedule.root_samples].sort().values
        rest = order[self.schedule.root_samples :].sort().values
        return rest, ClientData(split.inputs, root, split.targets[root])

    def _own_side(self) -> Server | None:
        """The server's own tools, for a rule that asks for them."""
        if not self.rule.needs_server:
            return None
        if self.root is None:
            raise ConfigError(f"{self.rule.name} practises on root data, but does not ask for any")
        policy = self.rule.client_policy
        return Server(
            self.dataset,
            self.root,
            self.validation_rows,
            self.model,
            self.trainer,
            self.training,
            self.schedule.rounds,
            self.schedule.seed,
            self.training.prox_mu if policy.prox_mu is None else policy.prox_mu,
            policy.local_batch_norm,
        )

    def step(self, round: int) -> RoundResult:
        """One round: the model moves on by one aggregated update."""
        seconds: dict[str, float] = {}
        chosen = self._participants(round)
        samples = {client: len(self.data[client]) for client in chosen}
        releases = self.protection.releases(samples, self.training.batch_size, self.training.epochs)
        self.protection.before(round, releases)
        with _timed(seconds, "train"):
            matrix, loss, root_update = self._train(chosen, round)
            matrix = self.protection.noise(matrix, chosen, round)
        with _timed(seconds, "attack"):
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
        with _timed(seconds, "aggregate"):
            result = self.protection.aggregate(
                updates, round, lambda sent: self._aggregate(self.rule, sent, round, root_update)
            )
        if round <= 5:
            with _timed(seconds, "plain_mean"):  # the yardstick of the rule's overhead
                weighted_sum(updates.matrix, sample_weights(updates, None))
        self.previous_weights = self.weights
        if result.skipped is None:
            self.weights = self.weights + self.schedule.server_lr * result.delta.to(self.weights.dtype)
        told = RoundResult(
            round,
            seconds,
            self._client_lines(updates, result, round),
            skipped=result.skipped,
            dropped=result.dropped,
            privacy=self.protection.after(chosen, releases),
        )
        with _timed(seconds, "evaluate"):
            if self.schedule.evaluates(round):
                self._judge(told)
        told.memory_mb = _peak_memory_mb()
        return told

    def _aggregate(
        self, rule: Aggregator, updates: Updates, round: int, root_update: Tensor | None
    ) -> Aggregation:
        server = None if self.server is None else self.server.at(self.weights)
        return rule.aggregate(updates, round, self.weights, root_update, server)

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
        if self.per_round == len(self.clients):
            return self.clients
        rng = numpy_generator(self.schedule.seed, "participation", round)
        return tuple(self.clients[i] for i in sorted(rng.permutation(len(self.clients))[: self.per_round]))

    def _train(self, chosen: tuple[str, ...], round: int) -> tuple[Tensor, Tensor, Tensor | None]:
        policy, seed, drift = self.rule.client_policy, self.schedule.seed, self.dataset.drift
        tasks = [
            ClientTask(
                client,
                self._data_of(client, round),
                seed_for(seed, "train", round, client),
                self._start_of(client) if policy.local_batch_norm else None,
                None if drift is None else partial(drift, client=client, round=round),
            )
            for client in chosen
        ]
        if self.root is not None:
            tasks.append(ClientTask(ROOT, self.root, seed_for(seed, "train", round, ROOT)))
        lr = learning_rate(self.training, round, self.schedule.rounds)
        prox_mu = self.training.prox_mu if policy.prox_mu is None else policy.prox_mu
        trained = self.trainer.train(self.weights, tasks, lr, prox_mu)
        matrix, loss = trained.matrix[: len(chosen)], trained.loss[: len(chosen)]
        if policy.local_batch_norm:
            self._keep_batch_norm_home(tasks[: len(chosen)], matrix)
        return matrix, loss, trained.matrix[-1] if self.root is not None else None

    def _data_of(self, client: str, round: int) -> ClientData:
        """The client's samples; its poisoned copy, made once, while a data attack is on."""
        campaign, clean = self.campaign, self.data[client]
        if not (campaign.attack.poisons_data and client in campaign.byzantine and campaign.active(round)):
            return clean
        if client not in self.poisoned:
            dataset = self.dataset
            own = LocalData(
                clean.inputs[clean.rows],
                clean.targets,
                len(dataset.class_names),
                dataset.task is Task.MULTILABEL,
            )
            lie = campaign.poison(client, own, round)
            rows = torch.arange(len(lie.targets))
            self.poisoned[client] = clean if lie is own else ClientData(lie.inputs, rows, lie.targets)
        return self.poisoned[client]

    def _start_of(self, client: str) -> Tensor:
        """The global weights with the client's own BatchNorm (the initial one for a client not seen yet)."""
        start, mask = self.weights.clone(), self.layout.batch_norm_mask
        if client in self.local_batch_norm:
            start[mask] = self.local_batch_norm[client]
        return start

    def _keep_batch_norm_home(self, tasks: list[ClientTask], matrix: Tensor) -> None:
        """Store what each client learnt of BatchNorm and take it out of what is sent."""
        mask = self.layout.batch_norm_mask
        for row, task in enumerate(tasks):
            assert task.weights is not None
            self.local_batch_norm[task.client] = (task.weights + matrix[row])[mask]
        matrix[:, mask] = 0

    def _client_lines(self, updates: Updates, result: Aggregation, round: int) -> list[dict[str, Any]]:
        def column(values: Tensor | None) -> list[Any]:
            return [None] * len(updates) if values is None else values.tolist()

        own = {name: values.tolist() for name, values in result.columns.items()}
        own |= {f"reported_{name}": values.tolist() for name, values in updates.metrics.items()}
        lines = zip(
            updates.clients,
            updates.num_samples.tolist(),
            column(result.weights),
            column(result.scores),
            column(result.flags),
            strict=True,
        )
        return [
            {
                "round": round,
                "client": client,
                "byzantine": client in self.campaign.byzantine,
                "attacking": client in self.campaign.byzantine and self.campaign.active(round),
                "num_samples": int(samples) if math.isfinite(samples) else samples,
                "weight": weight,
                "score": score,
                "flag": flag,
                "dropped": result.dropped.get(client),
                **{name: values[i] for name, values in own.items()},
            }
            for i, (client, samples, weight, score, flag) in enumerate(lines)
        ]

    def _judge(self, told: RoundResult) -> None:
        mask = self.layout.batch_norm_mask
        weights = self.weights
        if self.local_batch_norm:
            told.per_client = {
                client: self._evaluate(self._start_of(client), self.dataset.test, rows)
                for client, rows in zip(self.clients, self.assignment.test, strict=True)
            }
            weights = weights.clone()
            weights[mask] = torch.stack([*self.local_batch_norm.values()]).mean(0)
        elif told.round == self.schedule.rounds:
            told.per_client = {
                client: self._evaluate(weights, self.dataset.test, rows)
                for client, rows in zip(self.clients, self.assignment.test, strict=True)
            }
        told.metrics = self._evaluate(weights, self.dataset.test)
        for backdoor in self.campaign.attack.backdoors:
            told.metrics["attack_success"] = self._given_the_target(backdoor, triggered=True)
            told.metrics["attack_success_without_trigger"] = self._given_the_target(backdoor, triggered=False)
        told.validation = self._evaluate(weights, self.dataset.validation, self.validation_rows)

    def _given_the_target(self, backdoor: Any, triggered: bool) -> float:
        """Share of test samples of other classes that are given the backdoor's target, with and without trigger.

        Only the difference is the attack's: a model that says the target to everyone needs no trigger.
        """
        test = self.dataset.test  # the model holds the global weights just now
        logits = predict(
            self.model, self.dataset, backdoor.trigger(test.inputs) if triggered else test.inputs
        )
        if self.dataset.task is Task.MULTICLASS:
            return backdoor.success(logits.argmax(1), test.targets)
        return backdoor.success((logits > 0).to(test.targets.dtype).view_as(test.targets), test.targets)

    def _evaluate(self, weights: Tensor, split: Split, rows: Any = None) -> dict[str, float]:
        with torch.no_grad():
            for name, value in self.layout.unflatten(weights).items():
                self.tensors[name].copy_(value)
        return evaluate(self.model, self.dataset, split, rows)

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on. Random draws are named by (seed, round, client): no state."""
        return {
            "weights": self.weights,
            "previous_weights": self.previous_weights,
            "local_batch_norm": dict(self.local_batch_norm),
            "rule": self.rule.state_dict(),
            "attack": self.campaign.state_dict(),
            "privacy": self.protection.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the round whose state this is."""
        self.weights, self.previous_weights = state["weights"], state["previous_weights"]
        self.local_batch_norm = dict(state["local_batch_norm"])
        self.rule.load_state_dict(state["rule"])
        self.campaign.load_state_dict(state["attack"])
        self.protection.load_state_dict(state.get("privacy", {}))


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - start, 6)


def _peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
