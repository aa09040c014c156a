"""Hospitals behind a Flower Grid, as the loop sees them: membership, messages, quorum and deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.datasets import Dataset, Task
from wardround.datasets.partition import Assignment
from wardround.datasets.targets import class_counts
from wardround.federation.clients import (
    Description,
    Evaluation,
    FinishedModel,
    Received,
    TooFewReplies,
    TrainOrder,
)
from wardround.federation.schedule import Schedule, timed
from wardround.flower.config import FederationConfig
from wardround.flower.messages import DELIVER, EVALUATE, TRAIN, Note
from wardround.flower.orders import AUDIT, CONTROL, PREPROCESSING, order_hash, work_section
from wardround.flower.secure_aggregation.cohort import Cohort, Limits
from wardround.flower.server.broker import SHORTEST_SLEEP, TRANSIENT, Failure, Reply
from wardround.flower.server.evaluations import combine_evaluations
from wardround.flower.server.masked_round import MaskedRound
from wardround.flower.server.membership import Membership
from wardround.flower.server.replies import MaskedReplies, Replies, SealedReplies
from wardround.privacy.masking import MaskedSum
from wardround.privacy.params import STEWARDED
from wardround.updates import Layout, Updates

__all__ = ["FlowerClients", "largest_reply"]


SPARE_BYTES = 4 * 2**20
"""Of a reply beside its numbers."""
ENCRYPTED_BYTES = 512
"""Per parameter: ciphertexts of CKKS have about 100, of Paillier up to 512 where few values share one."""


def largest_reply(parameters: int, outcomes: int, encrypted: bool) -> int:
    """Bytes of the largest reply that makes sense: the update and one row per outcome in float64, or a ciphertext.

    >>> largest_reply(1_000_000, 2, encrypted=False)
    36194304
    """
    return SPARE_BYTES + parameters * (ENCRYPTED_BYTES if encrypted else 8 * (outcomes + 2))


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
        preprocessing = (membership.roster.shape or {}).get("preprocessing")
        if preprocessing is not None:  # schema and scales are part of every order, and so of its hash
            self.work[PREPROCESSING] = preprocessing
        self._nodes: dict[str, int] = {}
        outcomes = len((membership.roster.shape or {}).get("class_names") or ())
        self.broker.bell.limit(largest_reply(layout.size, outcomes, config.run.privacy.mode in STEWARDED))

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
        sealed, summed = None, None
        if isinstance(replies, MaskedReplies) and replies.spent and len(replies.usable) < needed:
            # Nobody masks an update twice, so that asking again is of no use: the next round will have a sum.
            summed = MaskedSum({}, reason="an earlier attempt at this round lost its sum")
        elif len(replies.usable) < needed:
            reasons = {**replies.absent, **replies.problems}
            first = "; ".join(f"{client}: {reason}" for client, reason in list(reasons.items())[:3])
            why = f" ({first})" if first else ""
            raise TooFewReplies(f"{len(replies.usable)} usable updates, {needed} are needed{why}")
        elif isinstance(replies, MaskedReplies):
            with timed(seconds, "aggregate"):
                summed = self._sum_masked(order, asked, replies, updates)
        elif isinstance(replies, SealedReplies):
            sealed = replies.sealed
        return Received(updates, sealed, asked, replies.problems, replies.absent, seconds, summed)

    def _sum_masked(
        self, order: TrainOrder, asked: str, replies: MaskedReplies, updates: Updates
    ) -> MaskedSum:
        """The weighted sum of what hospitals keep, by the stages of secure aggregation."""
        assert order.weigh is not None
        rows = [row for row, client in enumerate(updates.clients) if client in replies.keys]
        reports = updates.select(rows)
        weighed = order.weigh(reports)
        assert weighed.weights is not None  # a rule that sees reports alone has weights
        weights = dict(zip(reports.clients, weighed.weights.tolist(), strict=True))
        if weighed.skipped is not None:
            return MaskedSum(weights, reason=weighed.skipped)
        privacy = self.config.run.privacy
        return MaskedRound(
            Cohort(asked, replies.keys, weights),
            self.layout.size,
            Limits(privacy.min_cohort, privacy.max_share),
            self.broker,
            self.audit,
            self._nodes,
            {"run": self.config.run.run_name, "round": order.round},
            self.params.deadline_seconds,
        ).sum()

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
                **({"by_outcome": True} if order.policy.by_outcome else {}),
            },
            "clients": self.config.clients,
        }
        kind: type[Replies] = Replies
        if order.encrypted or order.weigh is not None:
            head["mode"] = self.config.run.privacy.mode
            kind = SealedReplies if order.encrypted else MaskedReplies
        head[AUDIT] = list(self.audit.head())
        replies = kind(list(order.chosen), self.layout.size, self.dtype, order.policy.by_outcome)
        deadline = self.params.deadline_seconds
        control = {} if order.control is None else {CONTROL: order.control.numpy()}
        note = Note(head, {}, {"weights": order.weights.numpy(), **control})
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
            {"kind": EVALUATE, "run": self.config.run.run_name, **self.work, "round": round},
            {},
            {"weights": weights.numpy()},
        )
        self.broker.send(order, self.membership.refresh(), round, deadline)
        self.broker.collect(EVALUATE, deadline, replies.__setitem__)
        return combine_evaluations(replies, Task((self.membership.roster.shape or {})["task"]))

    def usable_weights(self, weights: Tensor) -> Tensor | None:
        """BatchNorm that stays with the hospitals does not leave them."""
        return None

    def deliver(self, model: FinishedModel, to: Sequence[str]) -> dict[str, str]:
        """Send the model to those who are connected, and to the others as they come back, for a while."""
        files = {name: np.frombuffer(content, dtype=np.uint8) for name, content in model.files.items()}
        head = {"kind": DELIVER, "run": self.config.run.run_name, "round": model.round}
        if PREPROCESSING in self.work:  # a hospital that was started anew reads its table by it
            head[PREPROCESSING] = self.work[PREPROCESSING]
        waiting, failed = dict.fromkeys(to, "it is not connected"), dict[str, str]()
        end = self.membership.clock() + self.params.delivery_seconds
        while True:
            present = self.membership.refresh()
            nodes = {client: present[client] for client in waiting if client in present}
            order = Note({**head, AUDIT: list(self.audit.head())}, {}, files)
            for client, reply in self._send_model(order, nodes).items():
                if not isinstance(reply, Failure):
                    del waiting[client]
                elif reply.reason in TRANSIENT:  # a hospital stores the same model twice without harm
                    waiting[client] = reply.reason
                else:
                    failed[client] = reply.reason
                    del waiting[client]
            if not waiting or self.membership.clock() >= end:
                return {**failed, **waiting}
            self.membership.sleep(max(self.params.poll_seconds, SHORTEST_SLEEP))

    def _send_model(self, order: Note, nodes: Mapping[str, int]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        deadline, round = self.params.deadline_seconds, int(order.head["round"])
        self.broker.send(order, nodes, round, deadline)
        for client in self.broker.collect(DELIVER, deadline, replies.__setitem__):
            replies[client] = Failure(f"no answer within {deadline:g} s")
        return replies

    def state_dict(self) -> dict[str, Any]:
        return {"roster": self.membership.roster.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is left to load: names were restored before the first hospital was waited for."""
