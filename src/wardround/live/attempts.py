"""How often a source may try a token: after a few wrong ones it has to wait, longer each time.

Nothing sleeps: while a source waits, its tokens are refused unread, so that many connections at once try no more
tokens than one. A cookie from an earlier login keeps working, and other sources notice nothing.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Attempts"]

FREE_MISTAKES = 5
"""Wrong tokens without a wait: people mistype."""
LONGEST_WAIT = 60.0
FORGET_AFTER = 3600.0
MOST_SOURCES = 10_000


@dataclass
class _Source:
    failures: int = 0
    last: float = 0.0
    free_at: float = 0.0


class Attempts:
    """Wrong tokens by source.

    >>> now = 0.0
    >>> attempts = Attempts(lambda: now)
    >>> for _ in range(7):
    ...     attempts.fail("192.0.2.1")
    >>> attempts.wait("192.0.2.1"), attempts.wait("192.0.2.2")
    (2.0, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._sources: dict[str, _Source] = {}

    def wait(self, source: str) -> float:
        """Seconds until this source may try again; 0 if it may now."""
        known = self._sources.get(_network(source))
        return 0.0 if known is None else max(0.0, known.free_at - self.clock())

    def fail(self, source: str) -> None:
        """Count a wrong token: 1 s of waiting after the sixth, doubled with each further one up to a minute."""
        now, network = self.clock(), _network(source)
        known = self._sources.pop(network, _Source())  # last in the dictionary: the newest
        if now - known.last > FORGET_AFTER:
            known = _Source()
        known.failures, known.last = known.failures + 1, now
        extra = known.failures - FREE_MISTAKES
        if extra > 0:
            known.free_at = now + min(LONGEST_WAIT, 2.0 ** min(extra - 1, 30))
        self._sources[network] = known
        while len(self._sources) > MOST_SOURCES:
            self._sources.pop(next(iter(self._sources)))


def _network(source: str) -> str:
    """Who counts as one source: an address, or the /64 of IPv6, of which everyone has 2⁶⁴ addresses."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))
