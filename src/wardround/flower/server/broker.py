"""Orders out, answers in, with a deadline: whatever a hospital does or does not do, this comes back.

Answers are matched by the id of the message they reply to. (The sender of an error reply is the SuperLink, not the
node.) What comes after the deadline, or twice, is told and not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from wardround.errors import WardroundError
from wardround.flower.messages import EVALUATE, HELLO, TRAIN, Note, from_records, to_records

__all__ = ["SHORTEST_NAP", "Exchange", "Failure", "Reply"]

TYPES = {HELLO: MessageType.QUERY, TRAIN: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}
GRACE = 2.0
"""Messages live this many times the deadline, so that a late answer is seen, and said to be late."""
SHORTEST_NAP = 0.01
"""Seconds: waiting must not keep a core busy."""
NODE_GONE = 5
"""Flower's code for a node that is no longer there."""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer."""

    reason: str


Reply = Note | Failure


@dataclass(frozen=True)
class _Sent:
    who: str
    kind: str
    round: int
    expires: float


class Exchange:
    """All messages of one run. `notice(event, who, round, reason)` is told what comes late or twice."""

    def __init__(
        self,
        grid: Grid,
        poll_seconds: float,
        notice: Callable[[str, str, int, str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.poll_seconds, self.notice = grid, poll_seconds, notice
        self.clock, self.sleep = clock, sleep
        self._waiting: dict[str, _Sent] = {}
        self._overdue: dict[str, _Sent] = {}
        self._answered: dict[str, _Sent] = {}
        self._hello: dict[str, Reply] = {}

    def send(self, order: Note, nodes: Mapping[str, int], round: int, deadline: float) -> None:
        """One order to several nodes, each under the name that its answer will have."""
        kind = str(order.head["kind"])
        content = to_records(order)  # once for all: nobody changes it
        messages = {
            who: Message(
                content, node, TYPES[kind], ttl=GRACE * deadline + self.poll_seconds, group_id=str(round)
            )
            for who, node in nodes.items()
        }
        if not messages:
            return
        self.grid.push_messages(list(messages.values()))
        expires = self.clock() + GRACE * deadline
        for who, message in messages.items():
            if identity := message.metadata.message_id:
                self._waiting[identity] = _Sent(who, kind, round, expires)

    def introductions(self) -> dict[str, Reply]:
        """The answers to `hello` that have come since the last look."""
        for sent, reply in self._pull([identity for identity, s in self._waiting.items() if s.kind == HELLO]):
            self._hello[sent.who] = reply
        new, self._hello = self._hello, {}
        return new

    def collect(self, kind: str, deadline: float, take: Callable[[str, Reply], None]) -> set[str]:
        """Hand over answers of one kind as they come, until all are there or time is up; who did not answer.

        Introductions that come in meanwhile are kept for `introductions`.
        """
        end = self.clock() + deadline
        while True:
            for sent, reply in self._pull([*self._waiting, *self._overdue]):
                if sent.kind == kind:
                    take(sent.who, reply)
                elif sent.kind == HELLO:
                    self._hello[sent.who] = reply
            missing = {identity: sent for identity, sent in self._waiting.items() if sent.kind == kind}
            if not missing or self.clock() >= end:
                break
            self.sleep(max(SHORTEST_NAP, min(self.poll_seconds, end - self.clock())))
        for identity, sent in missing.items():
            del self._waiting[identity]
            self._overdue[identity] = sent
        return {sent.who for sent in missing.values()}

    def asked(self, kind: str) -> set[str]:
        """Who has not yet answered an order of this kind."""
        return {sent.who for sent in self._waiting.values() if sent.kind == kind}

    def _pull(self, orders: list[str]) -> Iterator[tuple[_Sent, Reply]]:
        for message in self.grid.pull_messages(orders) if orders else ():
            identity = message.metadata.reply_to_message_id
            if identity in self._waiting:
                sent = self._answered[identity] = self._waiting.pop(identity)
                yield sent, _read(message)
            elif identity in self._overdue:
                sent = self._answered[identity] = self._overdue.pop(identity)
                if not message.has_error():
                    self.notice(
                        "late", sent.who, sent.round, f"its answer to '{sent.kind}' came after the deadline"
                    )
            elif identity in self._answered:
                sent = self._answered[identity]
                self.notice("repeated", sent.who, sent.round, f"it answered '{sent.kind}' more than once")
        self._forget()

    def _forget(self) -> None:
        """What has expired will not be answered: a stranger may be asked for its name again."""
        now = self.clock()
        for orders in (self._waiting, self._overdue, self._answered):
            for identity in [identity for identity, sent in orders.items() if sent.expires < now]:
                del orders[identity]


def _read(message: Message) -> Reply:
    if message.has_error():
        if message.error.code == NODE_GONE:
            return Failure("it went offline")
        reason = " ".join((message.error.reason or "").split())
        return Failure(f"it failed: {reason[-200:] or 'no reason given'}")
    try:
        return from_records(message.content)
    except WardroundError as error:
        return Failure(f"its answer {error}")
