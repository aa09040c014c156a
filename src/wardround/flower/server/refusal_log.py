"""What the gateway has refused, for its log: one line per address and reason and minute, with a count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["RefusalLog"]

INTERVAL = 60.0
"""Seconds between two lines about the same address and reason."""
MOST_ENTRIES = 1000
"""Addresses and reasons that are told apart at a time; the others are counted together."""
OTHERS = ("other addresses", "various reasons")


def write_line(text: str) -> None:
    """Write one line into the log."""
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"{stamp} {text}", file=sys.stderr, flush=True)


class RefusalLog:
    """Logs refusals: the first of a kind at once, later ones as a number per minute, so that nobody can fill the disk.

    >>> lines, now = [], [0.0]
    >>> log = RefusalLog(lines.append, lambda: now[0])
    >>> for _ in range(3):
    ...     log.note("10.0.0.9", "this key is not registered")
    >>> now[0] = 61.0
    >>> log.note("10.0.0.9", "this key is not registered")
    >>> lines
    ['refused 10.0.0.9: this key is not registered', 'refused 10.0.0.9: this key is not registered (3 times in 61 s)']
    """

    def __init__(
        self, write: Callable[[str], None] = write_line, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.write, self.clock, self.total = write, clock, 0
        self._since: dict[tuple[str, str], tuple[float, int]] = {}
        """Address and reason → when it was last written, and how often it has happened since."""

    def note(self, address: str, reason: str) -> None:
        """Count a refusal, and log it if it is time to."""
        self.total += 1
        entry = (address, reason)
        if entry not in self._since and len(self._since) >= MOST_ENTRIES:
            self._forget_old()
            entry = entry if len(self._since) < MOST_ENTRIES else OTHERS
        now = self.clock()
        written, count = self._since.get(entry, (-INTERVAL, 0))
        if now - written < INTERVAL:
            self._since[entry] = (written, count + 1)
            return
        self._write(entry, count + 1, now - written)
        self._since[entry] = (now, 0)

    def flush(self) -> None:
        """Log what was counted and not yet written."""
        now = self.clock()
        for entry, (written, count) in self._since.items():
            if count:
                self._write(entry, count, now - written)
        self._since.clear()

    def _write(self, entry: tuple[str, str], count: int, seconds: float) -> None:
        address, reason = entry
        self.write(
            f"refused {address}: {reason}" + (f" ({count} times in {seconds:.0f} s)" if count > 1 else "")
        )

    def _forget_old(self) -> None:
        now = self.clock()
        for entry, (written, count) in list(self._since.items()):
            if now - written >= INTERVAL:
                if count:
                    self._write(entry, count, now - written)
                del self._since[entry]
