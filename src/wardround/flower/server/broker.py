"""Send orders to nodes and collect their replies until a deadline, whatever a node does or fails to do.

A reply is matched by the id of the message it answers. (The sender of an error reply is the SuperLink, not the
node.) A reply that comes after the deadline, or twice, is reported and not used.

Flower's `pull_messages` waits for minutes for a reply of which only a part has arrived, and keeps all others waiting:
one hospital that hangs, or pretends to, would delay everyone. So where a gateway says which replies are whole, those
alone are fetched. Now and then all others are asked for too, by another thread: that a node has gone offline, only the
SuperLink knows.

A SuperLink hands out a reply once and then forgets the order. So where both threads ask for the same reply, one of them
is told that there is no such order; that is no answer while the other one may hold it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from wardround.errors import WardroundError
from wardround.flower.messages import DELIVER, EVALUATE, HELLO, MASKING, TRAIN, Note, from_records, to_records
from wardround.flower.server.doorbell import Bell

__all__ = ["SHORTEST_SLEEP", "TRANSIENT", "WENT_OFFLINE", "Broker", "Failure", "Reply"]

TYPES = {
    HELLO: MessageType.QUERY,
    TRAIN: MessageType.TRAIN,
    EVALUATE: MessageType.EVALUATE,
    DELIVER: MessageType.QUERY,
    **dict.fromkeys(MASKING, MessageType.TRAIN),
}
LIFETIME = 2.0
"""Messages live this many times the deadline, so that a late reply is seen and reported as late."""
SHORTEST_SLEEP = 0.01
"""Seconds: waiting must not keep a core busy."""
SWEEP_SECONDS = 4.0
"""Between two looks for replies that nobody has rung for."""
SWEEPING_SECONDS = 0.1
"""Between two looks whether such a look has ended."""
PUSHES = 3
"""Attempts to hand an order to the SuperLink."""
WENT_OFFLINE = "it went offline"
LOST = "its answer was lost on the way"
TRANSIENT = (WENT_OFFLINE, LOST)
"""Failures after which the same order may be sent again."""
NODE_GONE, NOT_FOUND = 5, 3
"""Flower's codes for a node that is no longer there, and for an order that the SuperLink does not know (any more)."""


@dataclass(frozen=True)
class Failure:
    """Why there is no usable reply."""

    reason: str


Reply = Note | Failure


@dataclass(frozen=True)
class _Sent:
    """One order on its way to one node."""

    recipient: str
    kind: str
    round: int
    expires: float


class Broker:
    """All messages of one run between the server and its hospitals.

    Args:
        grid: Flower's connection to the nodes.
        poll_seconds: Time between two looks for replies.
        on_unusable: Called as `on_unusable(event, sender, round, reason)` for a reply that comes `late` or is
            `repeated`.
        clock: Seconds that only grow.
        sleep: Waits that many seconds.
        bell: Says which replies have come; by default nobody does, and all are looked for.
    """

    def __init__(
        self,
        grid: Grid,
        poll_seconds: float,
        on_unusable: Callable[[str, str, int, str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        bell: Bell | None = None,
    ) -> None:
        self.grid, self.poll_seconds, self.on_unusable = grid, poll_seconds, on_unusable
        self.clock, self.bell = clock, bell or Bell(None, sleep)
        self._sweeper = ThreadPoolExecutor(1, "wardround-sweep")
        self._sweep: Future[list[Message]] | None = None
        self._sweeping: frozenset[str] = frozenset()
        """The orders whose replies the other thread is asking for."""
        self._swept_at = clock()
        self._waiting: dict[str, _Sent] = {}
        self._overdue: dict[str, _Sent] = {}
        self._answered: dict[str, _Sent] = {}
        self._introductions: dict[str, Reply] = {}

    def send(self, order: Note, nodes: Mapping[str, int], round: int, deadline: float) -> None:
        """Send one order to several nodes.

        Args:
            order: What to do.
            nodes: Name under which the reply will be handed over → node id.
            round: The round the order belongs to.
            deadline: Seconds in which a reply is of use.
        """
        if not nodes:
            return
        kind = str(order.head["kind"])
        content = to_records(order)  # encoded once: nobody changes it
        for attempt in range(PUSHES):
            messages = {
                name: Message(
                    content,
                    node,
                    TYPES[kind],
                    ttl=LIFETIME * deadline + self.poll_seconds,
                    group_id=str(round),
                )
                for name, node in nodes.items()
            }
            try:
                self.grid.push_messages(list(messages.values()))
                break
            except Exception:
                # A busy SuperLink may drop a message's parts before the last one has come; no public class of Flower's
                # says so. An order that somebody got all the same gets the same reply again.
                if attempt == PUSHES - 1:
                    raise
        self.bell.ring(list(nodes.values()))
        expires = self.clock() + LIFETIME * deadline
        for name, message in messages.items():
            if message_id := message.metadata.message_id:
                self._waiting[message_id] = _Sent(name, kind, round, expires)

    def introductions(self) -> dict[str, Reply]:
        """Return the replies to `hello` that have come since the last call, by recipient."""
        asked = [message_id for message_id, sent in self._waiting.items() if sent.kind == HELLO]
        for sent, reply in self._new_replies(asked):
            if sent.kind == HELLO:  # a look that began earlier may bring others
                self._introductions[sent.recipient] = reply
        new, self._introductions = self._introductions, {}
        return new

    def collect(self, kind: str, deadline: float, take: Callable[[str, Reply], None]) -> set[str]:
        """Hand replies of one kind to `take` as they come, until all are there or the deadline passes.

        Replies to `hello` that come meanwhile wait for `introductions`.

        Returns:
            The recipients that did not reply.
        """
        end = self.clock() + deadline
        while True:
            for sent, reply in self._new_replies([*self._waiting, *self._overdue]):
                if sent.kind == kind:
                    take(sent.recipient, reply)
                elif sent.kind == HELLO:
                    self._introductions[sent.recipient] = reply
            missing = {message_id: sent for message_id, sent in self._waiting.items() if sent.kind == kind}
            if not missing or self.clock() >= end:
                break
            self.pause(end - self.clock())
        for message_id, sent in missing.items():
            del self._waiting[message_id]
            self._overdue[message_id] = sent
        return {sent.recipient for sent in missing.values()}

    def pending(self, kind: str) -> set[str]:
        """Return the recipients that have not yet replied to an order of this kind."""
        return {sent.recipient for sent in self._waiting.values() if sent.kind == kind}

    def pause(self, longest: float = float("inf")) -> None:
        """Wait until there may be something new."""
        interval = self.poll_seconds
        if self.bell.works:
            interval = SWEEP_SECONDS if self._sweep is None else SWEEPING_SECONDS
        self.bell.wait(max(SHORTEST_SLEEP, min(interval, longest)))

    def _new_replies(self, message_ids: list[str]) -> Iterator[tuple[_Sent, Reply]]:
        """The replies to these orders that have come; others that come along are reported or kept as they should be."""
        if not self.bell.works:
            yield from self._read_all(self.grid.pull_messages(message_ids) if message_ids else ())
            return
        self.bell.hear()
        if ready := self.bell.take_answered(message_ids):
            yield from self._read_all(self.grid.pull_messages(sorted(ready)))
        if self._sweep is not None and self._sweep.done():
            sweep, self._sweep, self._sweeping = self._sweep, None, frozenset()
            yield from self._read_all(sweep.result())
        rest = [one for one in message_ids if one not in self.bell.rings.answering]
        if self._sweep is None and rest and self.clock() - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = self.clock()
            self._sweeping = frozenset(rest)
            self._sweep = self._sweeper.submit(lambda: list(self.grid.pull_messages(rest)))

    def _read_all(self, messages: Iterable[Message]) -> Iterator[tuple[_Sent, Reply]]:
        for message in messages:
            message_id = message.metadata.reply_to_message_id
            if message_id in self._sweeping and _is_not_found(message):
                continue  # the other thread was first, and brings it
            self.bell.forget([message_id])
            if message_id in self._waiting:
                sent = self._answered[message_id] = self._waiting.pop(message_id)
                yield sent, _read(message)
            elif message_id in self._overdue:
                sent = self._answered[message_id] = self._overdue.pop(message_id)
                if not message.has_error():
                    self.on_unusable(
                        "late",
                        sent.recipient,
                        sent.round,
                        f"its answer to '{sent.kind}' came after the deadline",
                    )
            elif message_id in self._answered and not _is_not_found(message):
                sent = self._answered[message_id]
                self.on_unusable(
                    "repeated", sent.recipient, sent.round, f"it answered '{sent.kind}' more than once"
                )
        self._drop_expired()

    def _drop_expired(self) -> None:
        """Forget orders that will not be answered any more: an unknown node is then asked for its name again."""
        now = self.clock()
        for orders in (self._waiting, self._overdue, self._answered):
            expired = [message_id for message_id, sent in orders.items() if sent.expires < now]
            for message_id in expired:
                del orders[message_id]
            self.bell.forget(expired)


def _is_not_found(message: Message) -> bool:
    return message.has_error() and message.error.code == NOT_FOUND


def _read(message: Message) -> Reply:
    if message.has_error():
        if message.error.code == NODE_GONE:
            return Failure(WENT_OFFLINE)
        if message.error.code == NOT_FOUND:
            return Failure(LOST)
        reason = " ".join((message.error.reason or "").split())
        return Failure(f"it failed: {reason[-200:] or 'no reason given'}")
    try:
        return from_records(message.content)
    except WardroundError as error:
        return Failure(f"its answer {error}")
