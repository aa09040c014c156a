"""Clients that live in this process: their data, the attack they play, and the engine that trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator
from wardround.attacks.base import Defence
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset
from wardround.datasets.partition import Assignment
from wardround.errors import ConfigError, WardroundError
from wardround.federation.client import Client, LocalWork, client_data, train_together
from wardround.federation.clients import Description, Evaluation, FinishedModel, Received, TrainOrder
from wardround.federation.evaluation import Evaluator
from wardround.federation.loop import Federation
from wardround.federation.schedule import Schedule, timed
from wardround.federation.server_data import ServerData
from wardround.privacy.encryption.sealing import seal_updates
from wardround.privacy.masking import MaskedSum, SumMasked, masking_problem
from wardround.privacy.params import PrivacyParams
from wardround.privacy.protection import Protection, without_rows
from wardround.records import EvaluationDetails
from wardround.training.base import Trainer, TrainingParams
from wardround.updates import Aggregation, Layout, Updates, drop_malformed

__all__ = ["SimulatedClients", "simulated_federation", "with_mean_batch_norm"]


class SimulatedClients:
    """All clients of a simulation (see `Clients`)."""

    def __init__(
        self,
        members: Sequence[Client],
        campaign: Campaign,
        work: LocalWork,
        schedule: Schedule,
        evaluator: Evaluator,
        sum_masked: SumMasked | None = None,
    ) -> None:
        """`sum_masked` plays a round of secure aggregation, in the mode of that name."""
        self.members = {client.name: client for client in members}
        self.campaign, self.work, self.schedule, self.evaluator = campaign, work, schedule, evaluator
        self.sum_masked = sum_masked

    def describe(self) -> Description:
        dataset = self.evaluator.dataset
        targets, classes = dataset.train.targets, len(dataset.class_names)
        return Description(
            dataset.task.value,
            tuple(dataset.class_names),
            {name: class_counts(targets[client.data.rows], classes) for name, client in self.members.items()},
        )

    def choose(self, round: int, quarantined: Mapping[str, str]) -> dict[str, int]:
        free = [name for name in self.members if name not in quarantined]
        drawn = self.schedule.draw_participants(free, self.schedule.per_round(len(free)), round)
        return {name: len(self.members[name].data) for name in drawn}

    def samples(self, client: str) -> int | None:
        return len(self.members[client].data) if client in self.members else None

    def train(self, order: TrainOrder) -> Received:
        seconds: dict[str, float] = {}
        names = tuple(order.chosen)
        members = [self.members[name] for name in names]
        with timed(seconds, "train"):
            honest, loss = train_together(members, self.work, order.weights, order.round, order.policy)
        with timed(seconds, "attack"):
            matrix, metrics = self.campaign.strike(
                honest,
                names,
                {"loss": loss},
                order.round,
                order.weights,
                order.previous_weights,
                total_clients=len(self.members),
                defence=self._defence(honest, loss, order),
            )
        updates = self._updates(matrix, order, metrics)
        if order.weigh is not None:
            summed, problems = self._sum_masked(updates, order.weigh, order.hash)
            return Received(without_rows(updates), problems=problems, seconds=seconds, summed=summed)
        if not order.encrypted:
            return Received(updates, seconds=seconds)
        sealers = {client.name: client.sealer for client in members if client.sealer is not None}
        sealed, problems = seal_updates(updates, sealers, order.round, order.hash)
        return Received(without_rows(updates), sealed, order.hash, problems, seconds=seconds)

    def _sum_masked(
        self, updates: Updates, weigh: Callable[[Updates], Aggregation], order: str
    ) -> tuple[MaskedSum, dict[str, str]]:
        """The weighted sum of the updates that can be masked, and why others cannot."""
        assert self.sum_masked is not None  # the mode was checked
        kept = drop_malformed(updates)
        problems = dict(kept.dropped)
        for client, row in zip(kept.updates.clients, kept.updates.matrix, strict=True):
            if (problem := masking_problem(row.numpy())) is not None:
                problems[client] = problem
        rows = [row for row, client in enumerate(updates.clients) if client not in problems]
        if not rows:
            return MaskedSum({}, reason="no update can be masked"), problems
        maskable = updates.select(rows)
        weighed = weigh(maskable)
        assert weighed.weights is not None  # a rule that sees reports alone has weights
        weights = dict(zip(maskable.clients, weighed.weights.tolist(), strict=True))
        if weighed.skipped is not None:
            return MaskedSum(weights, reason=weighed.skipped), problems
        return self.sum_masked(maskable, weights, order), problems

    def _updates(self, matrix: Tensor, order: TrainOrder, metrics: Mapping[str, Tensor]) -> Updates:
        counts = list(order.chosen.values())
        return Updates(matrix, tuple(order.chosen), counts, metrics, self.work.layout)

    def _defence(self, honest: Tensor, loss: Tensor, order: TrainOrder) -> Defence | None:
        """What an attacker that knows the defence may ask: the round's result, were these rows sent."""
        if not self.campaign.attack.knows_defence or order.try_rule is None:
            return None
        try_rule = order.try_rule
        byzantine = [i for i, name in enumerate(order.chosen) if name in self.campaign.byzantine]

        def answer(crafted: Tensor) -> Aggregation:
            rows = honest.clone()
            rows[byzantine] = crafted.to(rows.dtype)
            return try_rule(self._updates(rows, order, {"loss": loss}))

        return answer

    def wait_for_retry(self, round: int, attempt: int, reason: str) -> None:
        """Clients in this process always reply: waiting would change nothing."""
        raise WardroundError(f"round {round}: {reason}")

    def evaluate(self, round: int, weights: Tensor) -> Evaluation:
        """Every client's own figures; all together by the mean of their BatchNorm, where that stays with them.

        The thresholds are those of all together: they are chosen on validation rows, which clients share.
        """
        layout, members = self.work.layout, self.members.values()
        own = [client.batch_norm for client in members if client.batch_norm is not None]
        together = self.usable_weights(weights)
        thresholds, _ = self.evaluator.on_validation(together)
        measured = {
            client.name: self.evaluator.on_test_rows(
                client.own_weights(weights, layout), client.test_rows, thresholds
            )
            for client in members
        }
        per_client = {name: one.metrics for name, one in measured.items()}
        reasons = {name: one.reasons for name, one in measured.items() if one.reasons}
        if not own:
            return Evaluation(per_client=per_client, details=EvaluationDetails(per_client_reasons=reasons))
        test, validation, details = self.evaluator.measure(together)
        details = replace(details, per_client_reasons=reasons)
        return Evaluation(test.metrics, validation.metrics, per_client, details)

    def usable_weights(self, weights: Tensor) -> Tensor:
        own = [client.batch_norm for client in self.members.values() if client.batch_norm is not None]
        return with_mean_batch_norm(weights, own, self.work.layout)

    def deliver(self, model: FinishedModel, to: Sequence[str]) -> dict[str, str]:
        """Nobody is missing: clients in this process are where the run folder is, and need no copy."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Random draws are named by (seed, round, client): they need no state."""
        return {
            "batch_norm": {
                name: client.batch_norm
                for name, client in self.members.items()
                if client.batch_norm is not None
            },
            "momentum": {
                name: client.momentum for name, client in self.members.items() if client.momentum is not None
            },
            "attack": self.campaign.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state["batch_norm"].items():
            self.members[name].batch_norm = values
        for name, values in state.get("momentum", {}).items():  # older checkpoints have none
            self.members[name].momentum = values
        self.campaign.load_state_dict(state["attack"])


def with_mean_batch_norm(weights: Tensor, own: Sequence[Tensor], layout: Layout) -> Tensor:
    """The global weights with the mean of the BatchNorm that clients keep; as they are where nobody keeps any."""
    if not own:
        return weights
    together = weights.clone()
    together[layout.batch_norm_mask] = torch.stack(list(own)).mean(0)
    return together


def class_counts(targets: Tensor, classes: int) -> list[int]:
    """Samples per class; positives per finding of a multi-label task."""
    if targets.ndim == 1:
        return torch.bincount(targets, minlength=classes).tolist()
    return targets.sum(0).int().tolist()


def simulated_federation(
    dataset: Dataset,
    assignment: Assignment,
    model: nn.Module,
    rule: Aggregator,
    campaign: Campaign,
    trainer: Trainer,
    training: TrainingParams,
    schedule: Schedule,
    privacy: PrivacyParams | None = None,
    sum_masked: SumMasked | None = None,
) -> Federation:
    """A federation whose clients all live in this process.

    `sum_masked` plays secure aggregation: the mode of that name needs it, no other does.
    """
    privacy = privacy or PrivacyParams()
    names = assignment.clients
    campaign.check(names)
    per_round = schedule.per_round(len(names))
    rule.check(per_round)
    layout = Layout.of(model)
    protection = Protection(privacy, rule, names, layout.size, schedule.seed)
    protection.check_cohort(per_round)
    if protection.masked and sum_masked is None:
        raise ConfigError(f"privacy.mode {privacy.mode} needs the function that plays it")
    server_data = ServerData(dataset, rule, schedule)
    evaluator = Evaluator(
        model, dataset, server_data.validation_rows, campaign.attack.backdoors, trainer.workers
    )
    data, sealers = client_data(dataset, assignment), protection.sealers()
    members = [
        Client(name, dataset, data[name], test_rows, campaign, privacy.dp, sealers.get(name))
        for name, test_rows in zip(names, assignment.test, strict=True)
    ]
    work = LocalWork(trainer, training, layout, schedule.rounds, schedule.seed)
    clients = SimulatedClients(members, campaign, work, schedule, evaluator, sum_masked)
    return Federation(
        clients,
        model,
        rule,
        training,
        schedule,
        protection,
        campaign,
        trainer,
        server_data,
        evaluator,
        knows_attackers=True,
    )
