"""Hospitals behind a Flower Grid, as the loop sees them: membership, messages, quorum and deadline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.federation.clients import Description, Evaluation, Received, TooFewReplies, TrainOrder
from wardround.federation.schedule import Schedule, timed
from wardround.federation.simulated import class_counts
from wardround.flower.config import FederationConfig
from wardround.flower.messages import EVALUATE, TRAIN, Note
from wardround.flower.orders import AUDIT, order_hash, work_section
from wardround.flower.server.broker import Reply
from wardround.flower.server.membership import Membership
from wardround.flower.server.replies import Replies, SealedReplies, combine_evaluations
from wardround.updates import Layout

__all__ = ["FlowerClients"]


class FlowerClients:
    """The hospitals of a federation (see `Clients`)."""

    def __init__(
        self,
        config: FederationConfig,
        membership: Membership,
        schedule: Schedule,
        layout: Layout,
        dtype: torch.dtype,
        dataset: Dataset | None = None,
        assignment: Assignment | None = None,
    ) -> None:
        """`dataset` and `assignment`: where the hospitals share out the server's dataset, as in trials."""
        self.config, self.membership, self.schedule = config, membership, schedule
        self.layout, self.dtype = layout, dtype
        self.dataset, self.assignment = dataset, assignment
        self.params, self.broker, self.audit = config.federation, membership.broker, membership.audit
        self.work = work_section(config.run)
        self._nodes: dict[str, int] = {}

    def describe(self) -> Description:
        shape, roster = self.membership.roster.shape or {}, self.membership.roster
        if self.assignment is None or self.dataset is None:  # class counts do not leave a hospital
            held = {client: [said["samples"]] for client, said in roster.descriptions.items()}
            return Description(shape["task"], ("samples",), held)
        targets, names = self.dataset.train.targets, tuple(self.dataset.class_names)
        shares = zip(self.assignment.clients, self.assignment.train, strict=True)
        counts = {client: class_counts(targets[rows], len(names)) for client, rows in shares}
        return Description(self.dataset.task.value, names, counts)

    def choose(self, round: int, quarantined: Mapping[str, str]) -> dict[str, int]:
        """Who is asked this round, of those who are connected and not in quarantine."""
        needed = self.params.needed(self.config.per_round)
        present = self.membership.refresh()
        free = [client for client in present if client not in quarantined]
        if len(free) < needed:
            present = self.membership.wait_for(needed + sum(client in present for client in quarantined))
            free = [client for client in present if client not in quarantined]
        if len(free) < needed:
            set_aside = f", {len(quarantined)} are quarantined" if quarantined else ""
            raise TooFewReplies(f"{len(free)} hospitals are there, {needed} are needed{set_aside}")
        count = max(needed, self.schedule.per_round(len(free)))
        drawn = self.schedule.draw_participants(free, count, round)
        self._nodes = {client: present[client] for client in drawn}
        return {client: self.membership.roster.descriptions[client]["samples"] for client in drawn}

    def samples(self, client: str) -> int | None:
        said = self.membership.roster.descriptions.get(client)
        return None if said is None else int(said["samples"])

    def train(self, order: TrainOrder) -> Received:
        seconds: dict[str, float] = {}
        with timed(seconds, "train"):
            replies, asked = self._collect(order)
        self.audit.append("received", round=order.round, clients=replies.received())
        updates = replies.updates(self.layout)
        needed = max(self.params.needed(self.config.per_round), order.minimum_updates(len(updates)))
        if len(replies.usable) < needed:
            reasons = {**replies.absent, **replies.problems}
            first = "; ".join(f"{client}: {reason}" for client, reason in list(reasons.items())[:3])
            raise TooFewReplies(f"{len(replies.usable)} usable updates, {needed} are needed ({first})")
        sealed = replies.sealed if isinstance(replies, SealedReplies) else None
        return Received(updates, sealed, asked, replies.problems, replies.absent, seconds)

    def _collect(self, order: TrainOrder) -> tuple[Replies, str]:
        """The hospitals' replies, and the hash of the order they were given."""
        head = {
            "kind": TRAIN,
            "run": self.config.run.run_name,
            **self.work,
            "round": order.round,
            "policy": {
                "prox_mu": order.policy.prox_mu,
                "local_batch_norm": order.policy.local_batch_norm,
            },
            "clients": self.config.clients,
        }
        if order.encrypted:
            head["mode"] = self.config.run.privacy.mode
        kind = SealedReplies if order.encrypted else Replies
        head[AUDIT] = list(self.audit.head())
        replies = kind(list(order.chosen), self.layout.size, self.dtype)
        deadline = self.params.deadline_seconds
        note = Note(head, {}, {"weights": order.weights.numpy()})
        self.broker.send(note, self._nodes, order.round, deadline)
        unanswered = self.broker.collect(TRAIN, deadline, replies.take)
        replies.close(sorted(unanswered), deadline, self.params.sample_cap)
        return replies, order_hash(note)

    def wait_for_retry(self, round: int, attempt: int, reason: str) -> None:
        self.membership.wait_for_retry(round, attempt, reason)

    def evaluate(self, round: int, weights: Tensor) -> Evaluation:
        """The hospitals' own figures, and their medians: no minority that lies moves those far."""
        replies: dict[str, Reply] = {}
        deadline = self.params.deadline_seconds
        order = Note(
            {"kind": EVALUATE, "run": self.config.run.run_name, **self.work}, {}, {"weights": weights.numpy()}
        )
        self.broker.send(order, self.membership.refresh(), round, deadline)
        self.broker.collect(EVALUATE, deadline, replies.__setitem__)
        return combine_evaluations(replies)

    def state_dict(self) -> dict[str, Any]:
        return {"roster": self.membership.roster.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is left to load: names were restored before the first hospital was waited for."""
