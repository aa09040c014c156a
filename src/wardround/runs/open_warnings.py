"""What an operator of a federation should know and do something about, as its audit log has it.

`warning` (topic, reason, perhaps client) begins one, `warning-over` ends it. A hospital of another version is one, too,
until it comes back with the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["VERSION", "OpenWarnings", "Topic"]

VERSION = "version"
"""The topic of a hospital that runs another version."""
LONGEST = 500
MOST = 100
"""Warnings that are kept at a time: clients' names are in them, and clients may lie."""


class Topic(NamedTuple):
    """What a warning is about: a part of the server, or something of a client."""

    topic: str
    client: str = ""


class OpenWarnings:
    """Follows the events of an audit log.

    >>> warnings = OpenWarnings()
    >>> warnings.note({"event": "warning", "topic": "certificate", "reason": "expires in 12 days"})
    >>> warnings.note({"event": "warning", "topic": "clock", "client": "north", "reason": "60 s ahead"})
    >>> warnings.note({"event": "warning-over", "topic": "certificate"})
    >>> warnings.texts()
    ['north: clock: 60 s ahead']
    """

    def __init__(self) -> None:
        self.reasons: dict[Topic, str] = {}

    def note(self, line: Mapping[str, Any]) -> None:
        """Take one line of the audit log."""
        event, client = line.get("event"), str(line.get("client", ""))[:LONGEST]
        topic = Topic(str(line.get("topic", ""))[:LONGEST], client)
        if event == "warning" and len(self.reasons) < MOST:
            self.reasons[topic] = str(line.get("reason", ""))[:LONGEST]
        elif event == "warning-over":
            self.reasons.pop(topic, None)
        elif event == "version-differs" and len(self.reasons) < MOST:
            self.reasons[Topic(VERSION, client)] = str(line.get("reason", ""))[:LONGEST]
        elif event == "version-agrees":
            self.reasons.pop(Topic(VERSION, client), None)

    def texts(self) -> list[str]:
        """One line each, those about the server first."""
        return [
            (f"{topic.client}: " if topic.client else "") + f"{topic.topic}: {reason}"
            for topic, reason in sorted(
                self.reasons.items(), key=lambda item: (item[0].client, item[0].topic)
            )
        ]
