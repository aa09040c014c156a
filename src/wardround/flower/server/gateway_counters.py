"""What the gateway has counted since it was started, in a file for `wardround status` and Prometheus."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from wardround.files import replace_file
from wardround.flower.server.clocks import Clocks
from wardround.records import CLOCKS

__all__ = ["GatewayCounters"]

INTERVAL = 2.0
"""Seconds between two times that the file is written."""


class GatewayCounters:
    """Bytes that went through, requests that were refused, and the hospitals' clocks.

    Args:
        path: The file; None: nothing is written.
        clock: For tests.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.clock = path, clock
        self.received = self.sent = self.requests = 0
        self.clocks = Clocks()
        self._written = -INTERVAL

    def add(self, received: int, sent: int) -> None:
        """Count a request that was passed on: bytes from the hospital, and bytes to it."""
        self.requests += 1
        self.received += received
        self.sent += sent

    def write(self, refused: int, now: bool = False) -> None:
        """Write the file, if it is time to."""
        if self.path is None or (not now and self.clock() - self._written < INTERVAL):
            return
        self._written = self.clock()
        values = {
            "requests": self.requests,
            "refused": refused,
            "bytes_in": self.received,
            "bytes_out": self.sent,
            CLOCKS: self.clocks.differences(),
        }
        with contextlib.suppress(OSError):  # a full disk must not close the gateway
            replace_file(self.path, json.dumps(values).encode())
