"""The list of events of a run, from its rounds, its clients, its summary and its audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.records import ClientRecord, RoundRecord, Summary, main_metric

__all__ = ["Event", "audit_events", "client_events", "round_events", "summary_events"]

NAMED = 6  # clients named in one event
LONGEST = 500  # characters: reasons come from operators and clients
ROUTINE = {"received", "weights", "dropped", "round-skipped", "quarantine-applied"} | {
    f"run-{status}" for status in ("finished", "diverged", "failed", "stopped")
}
"""Audit events that the tables show better, or that are in the round's line or the summary anyway."""
FIELDS = {"line", "time", "event", "previous", "hash", "round", "client", "reason"}


@dataclass(frozen=True)
class Event:
    """One line in the list of events."""

    type: str
    """What the reader can filter by."""
    text: str
    round: int | None = None
    time: float | None = None

    def plain(self) -> dict[str, Any]:
        values = {"type": self.type, "text": self.text[:LONGEST], "round": self.round, "time": self.time}
        return {name: value for name, value in values.items() if value is not None}


def round_events(record: RoundRecord, config: Mapping[str, Any]) -> list[Event]:
    """Skipped rounds, dropped updates, a model without finite output, the onset and end of an attack or a fault."""
    number, events = record.round, []
    attack = config.get("attack")
    byzantine = (config.get("record") or {}).get("attack", {}).get("byzantine")
    if isinstance(attack, dict) and byzantine:
        if attack.get("start") == number:
            events.append(
                Event("attack", f"the attack begins: {attack.get('name')}, {_some(byzantine)}", number)
            )
        if attack.get("end") == number:
            events.append(Event("attack", "the attack is over", number))
    fault = (config.get("record") or {}).get("fault") or {}
    if fault.get("broken"):
        if fault.get("start") == number:
            who = _some(fault["broken"])
            events.append(Event("fault", f"the fault begins: {fault.get('fault')}, {who}", number))
        if fault.get("end") == number:
            events.append(Event("fault", "the fault is fixed", number))
    if record.warning:
        events.append(Event("warning", record.warning, number))
    if record.skipped:
        events.append(Event("skipped", f"the round was skipped: {record.skipped}", number))
    dropped = {who: one.reason for who, one in record.left_out.items() if one.status != "quarantined"}
    if dropped:
        words = "; ".join(f"{client}: {reason}" for client, reason in list(dropped.items())[:NAMED])
        more = f"; and {len(dropped) - NAMED} more" if len(dropped) > NAMED else ""
        events.append(Event("dropped", f"dropped {words}{more}", number))
    if main_metric(record.metrics) in (record.metrics or {}) and record.is_broken:
        events.append(Event("broken", "the model's output is not finite", number))
    return events


def client_events(
    round: int, clients: Sequence[ClientRecord], before: set[str]
) -> tuple[list[Event], set[str]]:
    """Whose flag was raised or lifted in this round.

    Args:
        round: The number of the round.
        clients: The records of all its clients.
        before: Who was flagged before the round.

    Returns:
        The events, and who is flagged after the round.

    >>> client_events(4, [ClientRecord(4, "a", flag=True), ClientRecord(4, "b", flag=False)], {"b"})
    ([Event(type='flagged', text='flagged: a', round=4, time=None),
      Event(type='cleared', text='no longer flagged: b', round=4, time=None)], {'a'})
    """
    raised = [record.client for record in clients if record.flag and record.client not in before]
    lifted = [record.client for record in clients if record.flag is False and record.client in before]
    events = []
    if raised:
        events.append(Event("flagged", f"flagged: {_some(raised)}", round))
    if lifted:
        events.append(Event("cleared", f"no longer flagged: {_some(lifted)}", round))
    return events, (before | set(raised)) - set(lifted)


def summary_events(summary: Summary | None) -> list[Event]:
    """How the run ended."""
    if summary is None:
        return []
    status, reason = summary.status, summary.reason
    kind = "budget" if status == "stopped" and "budget" in str(reason) else status
    return [Event(kind, status + (f": {reason}" if reason else ""), summary.rounds)]


def audit_events(line: Mapping[str, Any], round: int | None = None) -> list[Event]:
    """A line of the audit log as an event; none for lines that every round has."""
    event = line.get("event")
    if not isinstance(event, str) or event in ROUTINE:
        return []
    client, reason = line.get("client"), line.get("reason")
    rest = ", ".join(
        f"{name} {value}" for name, value in line.items() if name not in FIELDS and _plain(value)
    )
    words = event.replace("-", " ").replace("_", " ")
    text = (
        (f"{client} " if client else "")
        + words
        + (f": {reason}" if reason else "")
        + (f" ({rest})" if rest else "")
    )
    time = line.get("time")
    return [Event(event, text, round, float(time) if isinstance(time, int | float) else None)]


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) <= 80


def _some(clients: Sequence[str]) -> str:
    """The first few names, what they have in common only once.

    >>> _some(["hospital-03", "hospital-07", "hospital-11"]), _some(["north", "nowhere"]), _some(["a-1"])
    ('hospital-03, 07, 11', 'north, nowhere', 'a-1')
    """
    names = list(map(str, clients[:NAMED]))
    stem = names[0].rstrip("0123456789")
    numbered = len(names) > 1 and stem and all(n.startswith(stem) and n[len(stem) :].isdigit() for n in names)
    named = ", ".join([names[0], *(n.removeprefix(stem) for n in names[1:])] if numbered else names)
    return named + (f" and {len(clients) - NAMED} more" if len(clients) > NAMED else "")
