"""Server-sent events: each browser has a cursor and reads what is new behind it, at its own speed.

The cursor is the event's id, so a browser that lost its connection sends it and continues from there.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from wardround.live.feed import Feed

__all__ = ["Cursor", "Hub", "new_messages"]

HEARTBEAT = 15.0  # seconds without news after which a comment is sent, which also detects a lost browser
BATCH = 100  # entries per message: the page draws while the rest is on its way
PLACE = re.compile(r"([0-9a-f]{12}):(\d{1,15})\.(\d{1,15})\.(\d{1,15})")


@dataclass
class Cursor:
    """How far a browser has read: the version of the list of runs, and a place in each run's log.

    >>> Cursor.of("boot", "boot.7;0123456789ab:0.12.3").text
    'boot.7;0123456789ab:0.12.3'
    >>> Cursor.of("boot", "another boot.7;…").text
    'boot.-1'
    """

    boot: str
    version: int = -1
    places: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, boot: str, text: str) -> Cursor:
        """Parse a cursor; one of another server, or an invalid one, stands at the beginning."""
        head, *places = text.split(";")
        cursor_boot, _, version = head.rpartition(".")
        if cursor_boot != boot or not version.isdigit():
            return cls(boot)
        matches = [match for place in places if (match := PLACE.fullmatch(place))]
        return cls(boot, int(version), {m[1]: (int(m[2]), int(m[3]), int(m[4])) for m in matches})

    @property
    def text(self) -> str:
        places = (f"{run}:{g}.{place}.{turn}" for run, (g, place, turn) in self.places.items())
        return ";".join((f"{self.boot}.{self.version}", *places))


class Hub:
    """Wakes the streams when the feed has changed, and ends them when the server stops."""

    def __init__(self, feed: Feed, boot: str, actions: bool) -> None:
        self.feed, self.boot, self.actions = feed, boot, actions
        self.closing = False
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start reading; called in the server's event loop."""
        self._loop = asyncio.get_running_loop()
        self.feed.start(self.wake)

    def close(self) -> None:
        """End the streams."""
        self.closing = True
        self.wake()

    def stop(self) -> None:
        """End the streams and stop reading."""
        self.close()
        self.feed.stop()

    def wake(self) -> None:
        """May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(
        self, cursor: Cursor, detailed: Sequence[str], curves: Sequence[str]
    ) -> AsyncIterator[str]:
        """Everything behind the cursor, then everything new as it comes."""
        for run in detailed:
            self.feed.read_details(run)
        yield "retry: 1500\n\n"
        while not self.closing:
            changed = self._changed
            for message in new_messages(self.feed, cursor, detailed, curves, self.actions):
                yield message
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await changed.wait()
            except TimeoutError:
                yield ": still here\n\n"


def new_messages(
    feed: Feed, cursor: Cursor, detailed: Sequence[str], curves: Sequence[str], actions: bool
) -> Iterator[str]:
    """Messages that bring a browser from its cursor to now; the cursor moves along."""
    first, version = cursor.version < 0, feed.published
    if version > cursor.version:
        infos = [run.info for run in list(feed.runs.values()) if run.info and run.version > cursor.version]
        gone = [run for run, since in list(feed.gone.items()) if since > cursor.version]
        if first or infos or gone:
            head = json.dumps(
                {
                    "boot": cursor.boot,
                    "first": first,
                    "now": time.time(),
                    "waiting": feed.waiting,
                    "gone": gone,
                    "actions": actions,
                }
            )
            cursor.version = version
            yield _message("runs", f'{head[:-1]},"runs":[{",".join(infos)}]}}', cursor)
        cursor.version = version
    for run in (*detailed, *curves):
        yield from _messages_of_run(feed, cursor, run, whole=run in detailed)


def _messages_of_run(feed: Feed, cursor: Cursor, run: str, whole: bool) -> Iterator[str]:
    if run not in feed.runs:
        return
    log = feed.runs[run].log
    ready, turn = log.ready
    generation, place, seen = cursor.places.get(run, (-1, 0, 0))
    reset = generation != log.generation or place > ready
    if reset:
        generation, place, seen = log.generation, 0, 0
    while place < ready or reset:
        batch = log.entries[place : min(place + BATCH, ready)]
        entries = [entry.text for entry in batch if whole or entry.kind == "round"]
        place += len(batch)
        cursor.places[run] = (generation, place, seen)
        if entries or reset:
            head = f'"run":"{run}","generation":{generation},"reset":{str(reset).lower()},"whole":{str(whole).lower()}'
            yield _message("log", f'{{{head},"entries":[{",".join(entries)}]}}', cursor)
        reset = False
    rows = [row.text for row in list(log.rows.values()) if row.turn > seen] if whole else []
    cursor.places[run] = (generation, place, turn)
    if rows:
        yield _message("clients", f'{{"run":"{run}","rows":[{",".join(rows)}]}}', cursor)


def _message(event: str, data: str, cursor: Cursor) -> str:
    return f"id: {cursor.text}\nevent: {event}\ndata: {data}\n\n"
