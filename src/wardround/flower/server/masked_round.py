"""A masked round over messages: carries keys, shares and masked updates between the hospitals.

Whoever does not answer a stage is out from there on. Where too many are lost before anybody has masked an update, the
round can be tried again; later, it has no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from wardround.federation.clients import TooFewReplies
from wardround.flower.messages import CONFIRM, MASK, REVEAL, SHARE_KEYS, Note
from wardround.flower.secure_aggregation.client import KeyShares, Revealed
from wardround.flower.secure_aggregation.cohort import Cohort, Limits
from wardround.flower.secure_aggregation.server import MaskingServer, SumLost
from wardround.flower.server.broker import Broker, Failure, Reply
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.masking import MaskedSum
from wardround.runs.audit import AuditLog

__all__ = ["MaskedRound"]


class MaskedRound:
    """The stages of one round after training."""

    def __init__(
        self,
        cohort: Cohort,
        dimension: int,
        limits: Limits,
        broker: Broker,
        audit: AuditLog,
        nodes: Mapping[str, int],
        head: Mapping[str, Any],
        deadline: float,
    ) -> None:
        """Prepare the stages.

        Args:
            cohort: who takes part, with which keys and weights.
            dimension: D, the length of an update.
            limits: which sums the server asks for; hospitals have limits of their own.
            broker: carries messages.
            audit: gets one line per stage.
            nodes: client → node id.
            head: what every order says: `run` and `round`.
            deadline: seconds for one stage.
        """
        self.cohort, self.dimension, self.limits = cohort, dimension, limits
        self.broker, self.audit, self.nodes, self.deadline = broker, audit, nodes, deadline
        self.head = {**head, "order": cohort.order}
        self.dropped: dict[str, str] = {}
        """Client → at which stage it was lost, and why."""

    def sum(self) -> MaskedSum:
        """The weighted sum of those who are left. Raises `TooFewReplies` where the round can be tried again."""
        weights = self.cohort.weights
        try:
            server = MaskingServer(self.cohort, self.dimension, self.limits)
        except Refused as problem:
            return MaskedSum(weights, reason=f"no hospital would mask its update: {problem}")
        try:
            shares = self._share_keys(server)
        except SumLost as lost:
            first = "; ".join(f"{client}: {reason}" for client, reason in list(self.dropped.items())[:3])
            raise TooFewReplies(f"{lost} ({first})") from None
        try:
            self._ask(MASK, {client: {"shares": own} for client, own in shares.items()}, _masked(server))
            survivors = server.survivors()
            outside = dict(self.dropped)
            told = {"survivors": list(survivors)}
            self._ask(CONFIRM, dict.fromkeys(survivors, told), _confirmed(server))
            tags = {client: {"tags": own} for client, own in server.confirmations().items()}
            self._ask(REVEAL, tags, _revealed(server))
            total = server.unmask()
        except SumLost as lost:
            return MaskedSum(weights, dropped=dict(self.dropped), reason=str(lost))
        return MaskedSum(weights, torch.from_numpy(total), survivors, outside)

    def _share_keys(self, server: MaskingServer) -> dict[str, dict[str, str]]:
        cohort = {"cohort": self.cohort.to_plain()}
        self._ask(SHARE_KEYS, dict.fromkeys(self.cohort.clients, cohort), _shared(server))
        return server.deliveries()

    def _ask(
        self,
        stage: str,
        heads: Mapping[str, Mapping[str, Any]],
        take: Callable[[str, Note], None],
    ) -> None:
        """Ask each client its question of a stage, and hand its answer to `take`."""
        answered: list[str] = []
        lost: dict[str, str] = {}

        def handle(client: str, reply: Reply) -> None:
            if isinstance(reply, Failure):
                lost[client] = reply.reason
                return
            try:
                take(client, reply)
                answered.append(client)
            except Refused as problem:
                lost[client] = str(problem)

        for client, head in heads.items():
            note = Note({"kind": stage, **self.head, **head})
            self.broker.send(note, {client: self.nodes[client]}, int(self.head["round"]), self.deadline)
        for client in self.broker.collect(stage, self.deadline, handle):
            lost[client] = f"no answer within {self.deadline:g} s"
        self.audit.append(
            "stage", round=self.head["round"], stage=stage, answered=sorted(answered), dropped=lost
        )
        self.dropped |= {client: f"lost at stage '{stage}': {reason}" for client, reason in lost.items()}


def _shared(server: MaskingServer) -> Callable[[str, Note], None]:
    def take(client: str, reply: Note) -> None:
        server.take_shares(client, KeyShares(_words(reply, "tokens"), str(reply.head.get("commitment"))))

    return take


def _masked(server: MaskingServer) -> Callable[[str, Note], None]:
    def take(client: str, reply: Note) -> None:
        masked = reply.arrays.get("masked")
        if masked is None or masked.dtype != np.uint8 or masked.ndim != 1 or len(masked) % 8:
            raise Refused("no masked update in its answer")
        server.take_masked(client, np.ascontiguousarray(masked).view("<u8").astype(np.uint64, copy=False))

    return take


def _confirmed(server: MaskingServer) -> Callable[[str, Note], None]:
    return lambda client, reply: server.take_tags(client, _words(reply, "tags"))


def _revealed(server: MaskingServer) -> Callable[[str, Note], None]:
    def take(client: str, reply: Note) -> None:
        server.take_revealed(client, Revealed(_words(reply, "seeds"), _words(reply, "keys")))

    return take


def _words(reply: Note, key: str) -> dict[str, str]:
    """Words by hospital, as a stranger sent them."""
    values = reply.head.get(key)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise Refused(f"no {key} in its answer")
    return values
