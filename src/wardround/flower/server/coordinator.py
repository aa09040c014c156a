"""The server of a federation: rounds over a Flower Grid, with a quorum, a deadline, records and resume.

A loop of our own, because Flower's always begins at round 1. It writes an ordinary run folder, so that all that
reads runs reads federations too, and an audit log beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from torch import Tensor

from wardround import aggregators
from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.errors import WardroundError
from wardround.federation.client_half import objective_of
from wardround.federation.loop import participants
from wardround.federation.rounds import RoundResult, peak_memory_mb, timed
from wardround.federation.server_half import ServerHalf
from wardround.flower.config import FederationConfig
from wardround.flower.messages import EVALUATE, TRAIN, Note
from wardround.flower.server.audited_steward import WatchedSteward
from wardround.flower.server.broker import Reply
from wardround.flower.server.membership import Membership, QuorumMissed, TooFewAnswers
from wardround.flower.server.replies import Answers, SealedAnswers, judgement
from wardround.flower.workshop import network_of, order_of, work_of
from wardround.privacy.protection import Protection
from wardround.records import ClientRecord, LeftOut, RoundRecord
from wardround.runs.config import RECORD
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantined
from wardround.runs.runner import (
    campaign_of,
    class_counts,
    concluded,
    dataset_of,
    dealt,
    rounds,
    schedule_of,
    versions,
)
from wardround.threads import one_thread
from wardround.training.base import learning_rate
from wardround.training.engines import make_trainer
from wardround.updates import Aggregation, Updates

__all__ = ["Coordinator", "QuorumMissed", "coordinate"]

Listener = Callable[[RoundRecord], None]


def coordinate(
    config: FederationConfig,
    grid: Grid,
    out: Path,
    listen: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunFolder:
    """Run, or go on with, the federation in `out/<run name>`. A finished one is left as it is."""
    folder = RunFolder(Path(out) / config.run.run_name)
    summary = folder.summary()
    if summary is not None and summary.finished:
        return folder
    # One thread: results must not depend on how many there are.
    with one_thread():
        dataset: Dataset | None = None
        assignment: Assignment | None = None
        if config.has_partition:
            dataset, assignment = dealt(config.run)
        elif config.has_dataset:
            dataset = dataset_of(config.run)
        with folder.locked():
            membership = Membership(config, grid, folder, dataset, assignment, clock, sleep)
            _go_on(config, folder, membership, dataset, assignment, listen)
    return folder


def _go_on(
    config: FederationConfig,
    folder: RunFolder,
    membership: Membership,
    dataset: Dataset | None,
    assignment: Assignment | None,
    listen: Listener | None,
) -> None:
    checkpoint = folder.read_checkpoint()
    done = 0 if checkpoint is None else checkpoint["round"]
    audit = membership.audit
    folder.cut_after(done)
    folder.write_config({**config.plain(), RECORD: versions()})  # now it is a run, if one without a round

    def ended(status: str, reason: str | None) -> None:
        audit.append(f"run-{status}", **({"reason": reason} if reason else {}))

    with concluded(folder, (QuorumMissed,), ended):
        audit.append("run-started" if checkpoint is None else "run-resumed", run=folder.path.name, round=done)
        if checkpoint is not None:
            membership.roster.load_state_dict(checkpoint["federation"]["roster"])
        membership.wait_for_start(resumed=checkpoint is not None)
        coordinator = Coordinator(config, membership, dataset, assignment)
        if checkpoint is not None:
            coordinator.load_state_dict(checkpoint["federation"])
        folder.write_config({**config.plain(), RECORD: coordinator.record()})
        coordinator.rule.warm_up(config.per_round, coordinator.layout.size)
        rounds(coordinator, folder, done, config.run.rounds, listen)


class Coordinator(ServerHalf):
    """The server's half of every round, and the messages around it."""

    def __init__(
        self,
        config: FederationConfig,
        membership: Membership,
        dataset: Dataset | None,
        assignment: Assignment | None,
    ) -> None:
        self.config, self.membership, self.assignment = config, membership, assignment
        self.params, self.broker, self.audit = config.federation, membership.broker, membership.audit
        run, shape = config.run, membership.roster.shape
        assert shape is not None  # hospitals or the server's own data have fixed it
        self.work = order_of(run)
        classes = len(shape["class_names"])
        model = network_of(work_of(self.work), shape["input_shape"], shape["task"], classes)
        name, params = run.section("aggregator")
        rule = aggregators.create(name, **params)
        rooted = dataset is not None and (rule.needs_root_update or rule.needs_server)
        self.trainer = (
            make_trainer(model, objective_of(dataset), run.training, run.engine, run.device)
            if rooted and dataset is not None
            else None
        )
        clients = membership.order if assignment is not None else tuple(membership.roster.descriptions)
        campaign = campaign_of(run, clients or ())
        super().__init__(dataset, model, rule, campaign, self.trainer, run.training, schedule_of(run))
        self.protection = Protection(run.privacy, rule, None, self.layout.size, run.seed)
        self.protection.check_cohort(config.per_round)
        if (channel := self.protection.channel) is not None:
            channel.steward = WatchedSteward(channel.steward, self.audit.append)
        self._asked = 0  # the round that the session with the steward has been used for

    def step(self, round: int) -> RoundResult:
        """One round, tried again while the quorum is missed."""
        return self.membership.retry_until_quorum(lambda: self._try(round), round)

    def _try(self, round: int) -> RoundResult:
        seconds: dict[str, float] = {}
        needed = self.params.needed(self.config.per_round)
        apart = quarantined(self.membership.folder.path)
        chosen = self._choose(round, needed, apart)
        samples = {client: self.membership.roster.descriptions[client]["samples"] for client in chosen}
        releases = self.protection.releases(samples, self.training.batch_size, self.training.epochs)
        self.protection.before(round, releases)
        with timed(seconds, "train"):
            answers = self._ask_to_train(chosen, round)
            root_update = self._root_update(round)
        told = answers.updates(self.layout)
        least = self.config.run.privacy.min_cohort if self.protection.sealed else 1
        needed = max(needed, self.rule.minimum_clients(len(told)), least)
        if len(answers.usable) < needed:
            reasons = {**answers.silent, **answers.problems}
            first = "; ".join(f"{client}: {reason}" for client, reason in list(reasons.items())[:3])
            raise TooFewAnswers(f"{len(answers.usable)} usable updates, {needed} are needed ({first})")
        with timed(seconds, "aggregate"):
            result = self._combine(answers, told, round, root_update)
        result.dropped |= {
            client: why for client, why in answers.problems.items() if client in result.dropped
        }
        line = self._settle(round, told, result, seconds)
        self._note_absent(line, answers.silent, apart, round)
        line.privacy = self.protection.after(tuple(chosen), releases)
        with timed(seconds, "evaluate"):
            if self.schedule.evaluates(round):
                self._judge(line)
        line.memory_mb = peak_memory_mb()
        self._audit_round(line)
        return line

    def _combine(
        self, answers: Answers, told: Updates, round: int, root_update: Tensor | None
    ) -> Aggregation:
        if not isinstance(answers, SealedAnswers):
            return self.protection.aggregate(
                told, round, lambda sent: self._aggregate(self.rule, sent, round, root_update)
            )
        try:
            return self.protection.aggregate_sealed(
                told, answers.sealed, round, self.layout.size, self.weights.dtype
            )
        except WardroundError as error:  # the steward cannot be reached: it may be back in a while
            raise TooFewAnswers(str(error)) from None

    def _choose(self, round: int, needed: int, apart: dict[str, str]) -> dict[str, int]:
        """Who is asked this round, of those who are there and not set aside."""
        present = self.membership.refresh()
        free = [client for client in present if client not in apart]
        if len(free) < needed:
            present = self.membership.wait_for(needed + sum(client in present for client in apart))
            free = [client for client in present if client not in apart]
        if len(free) < needed:
            set_aside = f", {len(apart)} are quarantined" if apart else ""
            raise TooFewAnswers(f"{len(free)} hospitals are there, {needed} are needed{set_aside}")
        per_round = max(1, math.floor(self.schedule.participation * len(free) + 0.5))
        drawn = participants(tuple(free), max(needed, per_round), self.schedule.seed, round)
        return {client: present[client] for client in drawn}

    def _ask_to_train(self, chosen: dict[str, int], round: int) -> Answers:
        policy = self.rule.client_policy
        head = {
            "kind": TRAIN,
            **self.work,
            "round": round,
            "policy": {"prox_mu": policy.prox_mu, "local_batch_norm": policy.local_batch_norm},
            "clients": self.config.clients,
        }
        if (channel := self.protection.channel) is not None:
            if self._asked == round:
                self.protection.begin_again()
            self._asked = round
            head |= {"mode": self.config.run.privacy.mode, "session": channel.session}
        deadline = self.params.deadline_seconds
        kind = SealedAnswers if self.protection.sealed else Answers
        answers = kind(list(chosen), self.layout.size, self.weights.dtype)
        self.broker.send(Note(head, {}, {"weights": self.weights.numpy()}), chosen, round, deadline)
        unanswered = self.broker.collect(TRAIN, deadline, answers.take)
        answers.close(sorted(unanswered), deadline, self.params.sample_cap)
        self.audit.append("received", round=round, clients=answers.received())
        return answers

    def _root_update(self, round: int) -> Tensor | None:
        tasks = self.root_tasks(round)
        if not tasks or self.trainer is None:
            return None
        lr = learning_rate(self.training, round, self.schedule.rounds)
        policy = self.rule.client_policy
        prox_mu = self.training.prox_mu if policy.prox_mu is None else policy.prox_mu
        return self.trainer.train(self.weights, tasks, lr, prox_mu).matrix[0]

    def _note_absent(
        self, line: RoundResult, silent: dict[str, str], apart: dict[str, str], round: int
    ) -> None:
        """A record for those who sent nothing: quarantined, with weight 0, or absent, with none."""
        for client, left_out in [
            *((client, LeftOut("absent", reason)) for client, reason in silent.items()),
            *((client, LeftOut("quarantined", reason)) for client, reason in sorted(apart.items())),
        ]:
            told = self.membership.roster.descriptions.get(client)
            if told is None and left_out.status == "quarantined":
                continue  # set aside before it ever joined
            line.left_out[client] = left_out
            line.clients.append(
                ClientRecord(
                    round,
                    client,
                    left_out.status,
                    left_out.reason,
                    byzantine=client in self.campaign.byzantine,
                    attacking=client in self.campaign.byzantine and self.campaign.active(round),
                    num_samples=None if told is None else told["samples"],
                    weight=0.0 if left_out.status == "quarantined" else None,
                )
            )

    def _judge(self, told: RoundResult, weights: Tensor | None = None) -> None:
        """By the server's own data; by the hospitals' where it has none, or where BatchNorm stays with them."""
        if self.own_data is None or self.rule.client_policy.local_batch_norm:
            self._ask_to_judge(told)
            return
        super()._judge(told, weights)
        if self.assignment is not None and told.round == self.schedule.rounds:
            told.per_client = {
                client: self._evaluate(self.weights, self.own_data.test, rows)
                for client, rows in zip(self.assignment.clients, self.assignment.test, strict=True)
            }

    def _ask_to_judge(self, told: RoundResult) -> None:
        replies: dict[str, Reply] = {}
        deadline = self.params.deadline_seconds
        order = Note({"kind": EVALUATE, **self.work}, {}, {"weights": self.weights.numpy()})
        self.broker.send(order, self.membership.refresh(), told.round, deadline)
        self.broker.collect(EVALUATE, deadline, replies.__setitem__)
        per_client, metrics, validation = judgement(replies)
        told.per_client = per_client or None
        told.metrics, told.validation = metrics or None, validation or None

    def _audit_round(self, line: RoundResult) -> None:
        for client, left_out in line.left_out.items():
            event = "quarantine-applied" if left_out.status == "quarantined" else "dropped"
            self.audit.append(event, round=line.round, client=client, reason=left_out.reason)
        if line.skipped is not None:
            self.audit.append("round-skipped", round=line.round, reason=line.skipped)
        weights = {record.client: record.weight for record in line.clients}
        self.audit.append("weights", round=line.round, clients=weights)

    def record(self) -> dict[str, Any]:
        """What is worth knowing of the run beside its configuration."""
        shape, roster = self.membership.roster.shape or {}, self.membership.roster
        names, held = list(shape["class_names"]), {}
        if self.assignment is not None and self.own_data is not None:
            targets = self.own_data.train.targets
            held = {
                client: class_counts(targets[rows], len(names))
                for client, rows in zip(self.assignment.clients, self.assignment.train, strict=True)
            }
        else:  # class counts do not leave a hospital
            names, held = (
                ["samples"],
                {client: [told["samples"]] for client, told in roster.descriptions.items()},
            )
        return {
            **versions(),
            "engine": "flower",
            "model_parameters": self.layout.size,
            "aggregator": self.rule.resolved(self.config.per_round),
            "attack": self.campaign.record(),
            **({"privacy": protection} if (protection := self.protection.record()) else {}),
            "task": shape["task"],
            "class_names": names,
            "clients": held,
        }

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on."""
        return {
            **self.server_state(),
            "privacy": self.protection.state_dict(),
            "roster": self.membership.roster.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the round whose state this is."""
        self.load_server_state(state)
        self.protection.load_state_dict(state["privacy"])
