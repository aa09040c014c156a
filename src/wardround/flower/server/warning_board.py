"""Keeps the warnings of a running server true: in its audit log, and so on its console, the live page and in `status`.

A certificate may come near its end, and a hospital's clock may go wrong, months after the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wardround.flower.preflight.findings import Finding
from wardround.flower.server.clocks import FAR, NEAR
from wardround.runs.audit import AuditLog
from wardround.runs.open_warnings import VERSION, Topic
from wardround.runs.overview import RunOverview

__all__ = ["WarningBoard"]

INTERVAL = 10.0
"""Seconds between two looks."""
CLOCK = "clock"


@dataclass
class WarningBoard:
    """Writes down what has become a warning since the last look, and which ones are over."""

    check: Callable[[], list[Finding]]
    """Looks at certificates and clock."""
    audit: AuditLog
    overview: RunOverview
    """Of the same run; read up to now. It has what was open when the last server ended."""
    clock: Callable[[], float] = time.monotonic
    _open: dict[Topic, str] = field(init=False)
    _looked: float = field(init=False, default=-INTERVAL)

    def __post_init__(self) -> None:
        known = self.overview.open_warnings.reasons
        self._open = {topic: reason for topic, reason in known.items() if topic.topic != VERSION}

    def update(self) -> None:
        """Look, if it is time to."""
        if self.clock() - self._looked < INTERVAL:
            return
        self._looked = self.clock()
        now = {**self._of_server(), **self._of_clocks()}
        for topic, reason in now.items():
            # Figures of a clock change all the time; the days that a certificate has left once a day.
            if topic not in self._open or (not topic.client and self._open[topic] != reason):
                self.audit.append("warning", reason=reason, **_named(topic))
        for topic in set(self._open) - set(now):
            self.audit.append("warning-over", **_named(topic))
        self._open = now

    def _of_server(self) -> dict[Topic, str]:
        wrong = [one for one in self.check() if one.status != "ok"]
        return {Topic(one.check): one.text + (f"; {one.remedy}" if one.remedy else "") for one in wrong}

    def _of_clocks(self) -> dict[Topic, str]:
        warnings = {}
        for hospital, ahead in self.overview.clocks().items():
            topic = Topic(CLOCK, hospital)
            if abs(ahead) > (NEAR if topic in self._open else FAR):
                where = "ahead of" if ahead > 0 else "behind"
                warnings[topic] = f"{abs(ahead):.0f} s {where} the server's; set it right there (NTP)"
        return warnings


def _named(topic: Topic) -> dict[str, str]:
    return {"topic": topic.topic} | ({"client": topic.client} if topic.client else {})
