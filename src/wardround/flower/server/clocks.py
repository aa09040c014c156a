"""How far hospitals' clocks are from the server's, by the times that they sign."""

from __future__ import annotations

from collections import deque

__all__ = ["FAR", "NEAR", "Clocks"]

FAR, NEAR = 4.0, 2.0
"""Seconds from which a clock is worth a warning (a SuperLink refuses what was signed 5 s ahead), and from which the
warning is over."""
RECENT = 3
"""Signatures of which the nearest counts: one that was held up on its way looks like a clock that is behind. So does
the first one, which a node may have used for a while before this gateway was there to see it."""


class Clocks:
    """The last signatures of every hospital.

    >>> clocks = Clocks()
    >>> for seconds in (-71.0, -60.2, -60.3):
    ...     clocks.note("north", seconds)
    >>> clocks.note("east", -11.0)
    >>> clocks.differences()
    {'north': -60.2}
    """

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}

    def note(self, hospital: str, ahead: float) -> None:
        """A signature by a clock that is that many seconds ahead of ours."""
        self._recent.setdefault(hospital, deque(maxlen=RECENT)).append(ahead)

    def keep_only(self, hospitals: set[str]) -> None:
        """Forget those whose keys were revoked."""
        self._recent = {name: recent for name, recent in self._recent.items() if name in hospitals}

    def differences(self) -> dict[str, float]:
        """Hospital → seconds that its clock is ahead of ours; without those of whom more has to be seen.

        No delay makes a clock look ahead. One that looks behind may have sent what it signed a while ago.
        """
        nearest = {name: min(recent, key=abs) for name, recent in self._recent.items()}
        return {
            name: round(ahead, 1)
            for name, ahead in nearest.items()
            if ahead > 0 or len(self._recent[name]) == RECENT
        }
