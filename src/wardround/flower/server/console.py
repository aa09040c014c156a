"""What `wardround serve` says of a round: who took part, who was flagged or left out and why, and how long it took."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from wardround.flower.log import Log
from wardround.records import MAIN_METRICS, ClientRecord, LeftOut, RoundRecord, main_metric, main_value
from wardround.runs.overview import RunOverview
from wardround.runs.reasons import Peers, number

__all__ = ["AuditFollower", "Message", "RoundConsole", "format_round", "say"]

FAR_NORM = 100.0
"""An update whose norm is this many times the median of the others is worth a line of its own."""
FEW = 2
"""Others that a median of norms needs."""


@dataclass(frozen=True)
class Message:
    """One line for people, with the same as fields for programs."""

    text: str
    event: str = "message"
    fields: Mapping[str, Any] = field(default_factory=dict)


def say(echo: Callable[[str], None], message: Message) -> None:
    """Write a message; a `Log` gets its fields, too."""
    if isinstance(echo, Log):
        echo(message.text, message.event, message.fields)
    else:
        echo(message.text)


class AuditFollower:
    """Follows an audit log and puts its events into words: who joined, who was refused, what is awaited."""

    TEMPLATES = {
        "joined": "{client} joined ({samples} samples)",
        "connected": "{client} is back",
        "disconnected": "{client} is no longer connected",
        "refused": "refused: {client}: {reason}",
        "version-differs": "WARNING: {client}: {reason}",
        "version-agrees": "{client} runs the server's version now",
        "warning": "WARNING: {who}{topic}: {reason}",
        "warning-over": "{who}{topic}: the warning is over",
        "not-introduced": "a hospital did not say who it is: {reason}",
        "quorum-missed": "too few hospitals: {reason}",
        "quarantined": "{client} is quarantined: {reason}",
        "released": "{client} is released: {reason}",
        "keys-changed": "keys of hospitals: {text}",
        "exported": "the model of round {round} is in the run folder",
        "not-exported": "no model was exported: {reason}",
        "delivered": "{client} has the model of round {round}",
        "not-delivered": "{client} has not got the model: {reason}; serve again when it is back",
        "log-rewritten": "the audit log was changed behind the server's back: line {missing_line} is gone",
    }

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, path.stat().st_size if path.exists() else 0

    def new_messages(self) -> list[Message]:
        """Return one message for each event since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) < self.offset:  # somebody cut it: what is there now was not shown
                self.offset = 0
            file.seek(self.offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self.offset += len(whole) + len(end)
        return [message for line in whole.splitlines() if (message := self._message(line)) is not None]

    def _message(self, line: bytes) -> Message | None:
        try:
            event = json.loads(line)
            who = f"{event['client']}: " if event.get("client") else ""
            text = self.TEMPLATES[event["event"]].format(who=who, **event)
        except (ValueError, KeyError, TypeError):
            return None  # an event for programs, or half a line of a log that was cut
        known = {
            key: value for key, value in event.items() if key not in ("event", "hash", "previous", "time")
        }
        return Message(text, event["event"], known)


class RoundConsole:
    """Describes finished rounds; remembers the last evaluation, to compare like with like."""

    def __init__(self, overview: RunOverview, rounds: int) -> None:
        self.overview, self.rounds = overview, rounds
        self._before: Mapping[str, float] = {}
        """Hospital → its AUROC in the last evaluation."""

    def describe(self, record: RoundRecord) -> list[Message]:
        """Return what there is to say of a round: one line, and one for each update that is out of all proportion."""
        flagged = self._flagged(record.clients)
        aurocs = _aurocs(record)
        text = format_round(record, self.rounds, flagged, like_with_like(self._before, aurocs))
        fields = {
            "round": record.round,
            "took_part": [one.client for one in record.clients if one.status == "ok"],
            "flagged": flagged,
            "left_out": {client: one.reason for client, one in record.left_out.items()},
            "metrics": dict(record.metrics or {}),
            "evaluated_by": sorted(aurocs),
            "seconds": dict(record.seconds),
        }
        self._before = aurocs or self._before
        return [Message(text, "round", fields), *self._norms(record)]

    def _flagged(self, clients: Sequence[ClientRecord]) -> dict[str, str]:
        peers = Peers([one for one in clients if not one.flag and one.status == "ok"])
        return {
            one.client: self.overview.explain(one, peers)
            for one in clients
            if one.flag and one.status == "ok"
        }

    def _norms(self, record: RoundRecord) -> list[Message]:
        norms = {
            one.client: norm
            for one in record.clients
            if one.status in ("ok", "dropped") and (norm := self._norm(one)) is not None
        }
        messages = []
        for client, norm in norms.items():
            others = [value for other, value in norms.items() if other != client]
            usual = median(others) if len(others) >= FEW else 0.0
            if usual > 0 and norm > FAR_NORM * usual:
                text = (
                    f"  {client} sent an update of norm {norm:.3g}, {norm / usual:.2g} times the others' median "
                    f"({usual:.3g}): ask what happened there, or quarantine it"
                )
                fields = {"round": record.round, "client": client, "norm": norm, "usual": usual}
                messages.append(Message(text, "large-update", fields))
        return messages

    def _norm(self, one: ClientRecord) -> float | None:
        own = number(one.get("norm"))
        known = self.overview.clients.get(one.client)
        return own if own is not None or known is None else known.norm


def like_with_like(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """The AUROC of the hospitals that evaluated both times, where others came or went; empty otherwise.

    >>> like_with_like({"a": 0.9, "b": 0.7, "c": 0.8}, {"a": 0.92, "c": 0.84})
    'of the same 2 hospitals: 0.850 → 0.880'
    """
    both = [client for client in now if client in before]
    if not both or set(before) == set(now):
        return ""
    then, since = median(before[client] for client in both), median(now[client] for client in both)
    return f"of the same {_hospitals(len(both))}: {then:.3f} → {since:.3f}"


def format_round(
    record: RoundRecord, rounds: int, flagged: Mapping[str, str] | None = None, comparison: str = ""
) -> str:
    """Describe a finished round in one line.

    >>> format_round(RoundRecord(2, metrics={"auroc": 0.75}, left_out={"a": LeftOut("dropped", "NaN")}), 10)
    'round 2 of 10: AUROC 0.750; left out: a (NaN)'
    """
    parts = []
    if record.clients:
        took_part = sum(one.status == "ok" for one in record.clients)
        parts.append(f"{took_part} of {_hospitals(len(record.clients))}")
    main, value = main_metric(record.metrics), main_value(record.metrics)
    heading = MAIN_METRICS[main]
    if value is not None:
        over = f" (median of {_hospitals(count)})" if (count := len(_aurocs(record))) else ""
        parts.append(f"{heading} {value:.3f}{over}{', ' if comparison else ''}{comparison}")
    elif record.metrics and (why := record.details.reasons.get(main)) is not None:
        parts.append(f"no {heading}: {why.text}")
    if record.seconds:
        phases = ", ".join(f"{phase} {value:.1f}" for phase, value in record.seconds.items() if value >= 0.05)
        total = sum(record.seconds.values())
        parts.append(f"{total:.1f} s" + (f" ({phases})" if phases else ""))
    if record.warning:
        parts.append(record.warning)
    if record.skipped:
        parts.append(f"skipped: {record.skipped}")
    if flagged:
        parts.append("flagged: " + ", ".join(f"{client} ({why})" for client, why in flagged.items()))
    if record.left_out:
        clients = (f"{client} ({_format_left_out(one)})" for client, one in record.left_out.items())
        parts.append("left out: " + ", ".join(clients))
    return f"round {record.round} of {rounds}" + (": " + "; ".join(parts) if parts else "")


def _aurocs(record: RoundRecord) -> dict[str, float]:
    """Hospital → the AUROC (or C-index) that it reports."""
    own = {client: number(main_value(figures)) for client, figures in (record.per_client or {}).items()}
    return {client: auroc for client, auroc in own.items() if auroc is not None}


def _hospitals(count: int) -> str:
    return "1 hospital" if count == 1 else f"{count} hospitals"


def _format_left_out(left_out: LeftOut) -> str:
    quarantined = left_out.status == "quarantined"
    return f"quarantined: {left_out.reason}" if quarantined else left_out.reason
