"""Clients that live in this process: their data, the attack they play, and the engine that trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator
from wardround.attacks.base import Defence
from wardround.attacks.by_outcome import OutcomeCampaigns
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset
from wardround.datasets.partition import Assignment
from wardround.datasets.targets import class_counts
from wardround.errors import ConfigError, WardroundError
from wardround.faults import BrokenClients
from wardround.federation.client import Client, LocalWork, client_data, train_together
from wardround.federation.client_state import check_client_state
from wardround.federation.clients import Description, Evaluation, FinishedModel, Received, TrainOrder
from wardround.federation.evaluation import Evaluator
from wardround.federation.loop import Federation
from wardround.federation.schedule import Schedule, timed
from wardround.federation.server_data import ServerData
from wardround.federation.task_check import check_task
from wardround.privacy.encryption.sealing import seal_updates
from wardround.privacy.masking import MaskedSum, SumMasked, masking_problem
from wardround.privacy.params import PrivacyParams
from wardround.privacy.protection import Protection, without_rows
from wardround.records import EvaluationDetails
from wardround.training.base import Trainer, TrainingParams
from wardround.updates import Aggregation, Layout, Parts, Updates, drop_malformed

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
        broken: BrokenClients | None = None,
    ) -> None:
        """`sum_masked` plays a round of secure aggregation, in the mode of that name; `broken`: who has a fault."""
        self.members = {client.name: client for client in members}
        self.campaign, self.work, self.schedule, self.evaluator = campaign, work, schedule, evaluator
        self.by_outcome = OutcomeCampaigns(campaign)
        self.sum_masked, self.broken = sum_masked, broken or BrokenClients.none()

    def describe(self) -> Description:
        return self._description

    @cached_property
    def _description(self) -> Description:
        """Made once: every round asks, and counting the classes of thousands of clients takes a while."""
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
        return {name: len(self.members[name].held(round)) for name in drawn}

    def samples(self, client: str) -> int | None:
        return len(self.members[client].data) if client in self.members else None

    def train(self, order: TrainOrder) -> Received:
        seconds: dict[str, float] = {}
        members = [self.members[name] for name in order.chosen]
        with timed(seconds, "train"):
            honest, loss, parts = train_together(
                members, self.work, order.weights, order.round, order.policy, order.control
            )
        honest, parts = self._fail(honest, parts, order)
        with timed(seconds, "attack"):
            if parts is None:
                defence = self._defence(honest, loss, order, lambda rows: rows)
                matrix, metrics = self._strike(self.campaign, honest, loss, order, defence)
                updates = self._updates(matrix, order, metrics)
            else:
                updates = self._strike_by_outcome(honest, loss, parts, order)
        if order.weigh is not None:
            summed, problems = self._sum_masked(updates, order.weigh, order.hash)
            return Received(without_rows(updates), problems=problems, seconds=seconds, summed=summed)
        if not order.encrypted:
            return Received(updates, seconds=seconds)
        sealers = {client.name: client.sealer for client in members if client.sealer is not None}
        sealed, problems = seal_updates(updates, sealers, order.round, order.hash)
        return Received(without_rows(updates), sealed, order.hash, problems, seconds=seconds)

    def _fail(self, trained: Tensor, parts: Parts | None, order: TrainOrder) -> tuple[Tensor, Parts | None]:
        """What broken clients send for what they have trained; their parts fail together with their updates."""
        names = tuple(order.chosen)
        if parts is None:
            return self.broken.send(trained, names, order.round), None
        whole = self.broken.send(torch.cat([trained[:, None], parts.rows], dim=1), names, order.round)
        return whole[:, 0], Parts(whole[:, 1:], parts.counts)

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

    def _updates(
        self, matrix: Tensor, order: TrainOrder, metrics: Mapping[str, Tensor], parts: Parts | None = None
    ) -> Updates:
        counts = list(order.chosen.values())
        return Updates(matrix, tuple(order.chosen), counts, metrics, self.work.layout, parts)

    def _strike(
        self, campaign: Campaign, honest: Tensor, loss: Tensor, order: TrainOrder, defence: Defence | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Rows as they are sent, and what is reported with them."""
        return campaign.strike(
            honest,
            tuple(order.chosen),
            {"loss": loss},
            order.round,
            order.weights,
            order.previous_weights,
            total_clients=len(self.members),
            defence=defence,
        )

    def _strike_by_outcome(self, honest: Tensor, loss: Tensor, parts: Parts, order: TrainOrder) -> Updates:
        """Attackers craft the part of every outcome from the parts of that outcome, as they would craft updates."""

        def strike(
            campaign: Campaign, honest_part: Tensor, outcome: int
        ) -> tuple[Tensor, Mapping[str, Tensor]]:
            def with_part(part: Tensor) -> Parts:
                rows = parts.rows.clone()
                rows[:, outcome] = part
                return Parts(rows, parts.counts)

            defence = self._defence(honest_part, loss, order, with_part)
            return self._strike(campaign, honest_part, loss, order, defence)

        sent, metrics = self.by_outcome.strike(parts, strike)
        byzantine = [i for i, name in enumerate(order.chosen) if name in self.campaign.byzantine]
        matrix = honest
        if byzantine and self.campaign.active(order.round):
            matrix = honest.clone()
            matrix[byzantine] = sent.rows[byzantine].sum(1)
        return self._updates(matrix, order, metrics, sent)

    def _defence(
        self,
        honest: Tensor,
        loss: Tensor,
        order: TrainOrder,
        complete: Callable[[Tensor], Tensor | Parts],
    ) -> Defence | None:
        """What an attacker that knows the defence may ask: the round's result, were these rows sent.

        `complete` makes what is sent in a round of the rows of one matrix: these rows themselves, or the parts of all
        outcomes.
        """
        if not self.campaign.attack.knows_defence or order.try_rule is None:
            return None
        try_rule = order.try_rule
        byzantine = [i for i, name in enumerate(order.chosen) if name in self.campaign.byzantine]

        def answer(crafted: Tensor) -> Aggregation:
            rows = honest.clone()
            rows[byzantine] = crafted.to(rows.dtype)
            sent = complete(rows)
            if isinstance(sent, Parts):
                return try_rule(self._updates(sent.rows.sum(1), order, {"loss": loss}, sent))
            return try_rule(self._updates(sent, order, {"loss": loss}))

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
        if own:
            measured = {
                client.name: self.evaluator.on_test_rows(
                    client.own_weights(weights, layout), client.test_rows, thresholds
                )
                for client in members
            }
        else:
            shares = [client.test_rows for client in members]
            measured = dict(
                zip(self.members, self.evaluator.on_each_share(weights, shares, thresholds), strict=True)
            )
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
            "control": {
                name: client.control for name, client in self.members.items() if client.control is not None
            },
            "attack": self.campaign.state_dict(),
            "attack_by_outcome": self.by_outcome.state_dict(),
            "fault": self.broken.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state["batch_norm"].items():
            self.members[name].batch_norm = values
        for name, values in state.get("momentum", {}).items():  # older checkpoints have none
            self.members[name].momentum = values
        for name, values in state.get("control", {}).items():
            self.members[name].control = values
        self.campaign.load_state_dict(state["attack"])
        if "attack_by_outcome" in state:
            self.by_outcome.load_state_dict(state["attack_by_outcome"])
        self.broken.load_state_dict(state.get("fault", {}))  # older checkpoints have none


def with_mean_batch_norm(weights: Tensor, own: Sequence[Tensor], layout: Layout) -> Tensor:
    """The global weights with the mean of the BatchNorm that clients keep; as they are where nobody keeps any."""
    if not own:
        return weights
    together = weights.clone()
    together[layout.batch_norm_mask] = torch.stack(list(own)).mean(0)
    return together


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
    broken: BrokenClients | None = None,
) -> Federation:
    """A federation whose clients all live in this process.

    `sum_masked` plays secure aggregation: the mode of that name needs it, no other does. `broken` says who has a fault.
    """
    broken = broken or BrokenClients.none()
    privacy = privacy or PrivacyParams()
    names = assignment.clients
    campaign.check(names)
    check_task(dataset.task, rule, campaign.attack)
    broken.check(names, campaign.byzantine)
    per_round = schedule.per_round(len(names))
    rule.check(per_round)
    layout = Layout.of(model)
    check_client_state(training, rule, layout, schedule, len(names))
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
        Client(name, dataset, data[name], test_rows, campaign, privacy.dp, sealers.get(name), broken)
        for name, test_rows in zip(names, assignment.test, strict=True)
    ]
    work = LocalWork(trainer, training, layout, schedule.rounds, schedule.seed)
    clients = SimulatedClients(members, campaign, work, schedule, evaluator, sum_masked, broken)
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
        broken=broken,
    )
