"""How gateway and server app tell each other that there is something to fetch, so that nobody has to look.

Flower's nodes ask every few seconds whether there are orders, and a server app asks every few seconds whether there
are answers; each question costs more than the message it looks for. The gateway sees all of them pass. So the server
app rings when it has sent orders, and the gateway lets the nodes' questions wait until then; the gateway rings when
an answer has arrived, with all its parts. A ring that is lost costs time, not a message: both sides look by themselves
after a while.

JSON lines over a Unix socket that only its owner may open:

* server app → gateway: `{"orders": [identity, …]}`, `{"largest": bytes}` (no part of an answer is larger);
* gateway → server app: `{"answering": order}` (an answer begins to arrive), `{"answered": order}` (it is there),
  `{"abandoned": order}` (the rest will not come).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

__all__ = ["DOORBELL_VARIABLE", "Bell", "Doorbell", "Rings"]

DOORBELL_VARIABLE = "WARDROUND_DOORBELL"
"""The environment variable that names the socket to a server app."""
HOLD_SECONDS = 20.0
"""How long a node's question for orders is left open. Flower's own nodes give up after 30 s."""
LONGEST_LINE = 2**20
Sleep = Callable[[float], None]


class Doorbell:
    """The gateway's side: which nodes have orders waiting, and who is to be told of answers."""

    def __init__(self, on_largest: Callable[[int], None] = lambda size: None) -> None:
        self.on_largest = on_largest
        self._orders: dict[str, asyncio.Event] = {}
        self._listeners: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None  # which ends when nobody refers to it

    async def listen(self, path: Path) -> None:
        """Listen for server apps."""
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(path), limit=LONGEST_LINE)
        finally:
            os.umask(mask)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in self._listeners:
            writer.close()

    async def wait_for_orders(self, identity: str, seconds: float = HOLD_SECONDS) -> None:
        """Return when the node has orders, or after a while. A node that was never seen before does not wait."""
        event = self._orders.get(identity)
        if event is None:
            event = self._orders[identity] = asyncio.Event()
            event.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
        event.clear()

    def wake(self, identity: str) -> None:
        """Let a node's question for orders wait no longer."""
        if identity in self._orders:
            self._orders[identity].set()

    def tell(self, **line: Any) -> None:
        """Tell the server app."""
        content = json.dumps(line).encode() + b"\n"
        for writer in self._listeners:
            writer.write(content)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._listeners.add(writer)
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except (OSError, ValueError):
            pass  # it has ended in the middle of a line; what it wanted to say, nodes find out by themselves
        finally:
            self._listeners.discard(writer)
            writer.close()

    def _hear(self, line: dict[str, Any]) -> None:
        for identity in line.get("orders", ()):
            self._orders.setdefault(str(identity), asyncio.Event()).set()
        if "largest" in line:
            self.on_largest(int(line["largest"]))


class Rings:
    """What has come in since the last look: orders whose answer is there, and those whose answer is on its way."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.answering: set[str] = set()

    def hear(self, line: dict[str, Any]) -> None:
        """Take one line of the gateway."""
        if (order := line.get("answering")) is not None:
            self.answering.add(order)
        if (order := line.get("answered")) is not None:
            self.answering.discard(order)
            self.answered.add(order)
        if (order := line.get("abandoned")) is not None:
            self.answering.discard(order)


class Bell:
    """The server app's side.

    Without a gateway (simulations, tests) there is nobody to ring: `wait` sleeps, and says that one has to look.

    Args:
        path: The gateway's socket; None: there is none.
        sleep: Waits that many seconds.
    """

    def __init__(self, path: Path | None = None, sleep: Sleep = time.sleep) -> None:
        self.path, self.sleep = path, sleep
        self.rings = Rings()
        self._identities: dict[int, str] = {}
        self._largest: int | None = None
        self._socket: socket.socket | None = None
        self._buffer = b""

    @classmethod
    def from_environment(cls, sleep: Sleep) -> Bell:
        """The doorbell that `wardround serve` has named, if it has started this process."""
        path = os.environ.get(DOORBELL_VARIABLE)
        return cls(Path(path) if path else None, sleep)

    @property
    def works(self) -> bool:
        """Is there a gateway that rings?"""
        return self.path is not None and self._connect() is not None

    def introduce(self, node: int, identity: str) -> None:
        """Remember which identity the node with this number has."""
        self._identities[node] = identity

    def ring(self, nodes: Collection[int]) -> None:
        """Say that orders are out for these nodes."""
        self._say({"orders": [self._identities[node] for node in nodes if node in self._identities]})

    def limit(self, largest: int) -> None:
        """Say how large a part of an answer may be, in bytes."""
        self._largest = largest
        self._say({"largest": largest})

    def wait(self, seconds: float) -> None:
        """Wait until an answer has come, and not longer than this."""
        connection = None if self.path is None else self._connect()
        if connection is None:
            self.sleep(seconds)
            return
        end = time.monotonic() + seconds
        while not self.rings.answered:
            left = end - time.monotonic()
            if left <= 0 or not self._receive(connection, left):
                return
        self._receive(connection, 0)

    def take_answered(self, orders: Iterable[str]) -> set[str]:
        """Return those of these orders whose answer is there, each once."""
        found = self.rings.answered & set(orders)
        self.rings.answered -= found
        return found

    def hear(self) -> None:
        """Read what has been said meanwhile."""
        if self.path is not None and (connection := self._connect()) is not None:
            self._receive(connection, 0)

    def forget(self, orders: Collection[str]) -> None:
        """Forget orders that nobody waits for any more."""
        self.rings.answering.difference_update(orders)
        self.rings.answered.difference_update(orders)

    def _connect(self) -> socket.socket | None:
        if self._socket is None and self.path is not None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self.path))
            except OSError:
                connection.close()
                return None
            self._socket, self._buffer = connection, b""
            if self._largest is not None:
                self._say({"largest": self._largest})
        return self._socket

    def _say(self, line: dict[str, Any]) -> None:
        connection = None if self.path is None else self._connect()
        if connection is not None:
            try:
                connection.sendall(json.dumps(line).encode() + b"\n")
            except OSError:
                self._close()

    def _receive(self, connection: socket.socket, seconds: float) -> bool:
        """Read what there is, for up to that many seconds; False if nothing came."""
        ready, _, _ = select.select([connection], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            content = connection.recv(65536)
        except OSError:
            content = b""
        if not content:
            self._close()
            return False
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        for line in lines:
            self.rings.hear(json.loads(line))
        return True

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
