"""What is worth a line in the list of events: out of a round, its clients, the summary, the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.records import ClientRecord, RoundRecord, Summary

__all__ = ["Happening", "of_audit", "of_clients", "of_round", "of_summary"]

NAMED = 6  # clients named in one event
LONGEST = 500  # characters: reasons come from operators and clients
ROUTINE = {"received", "weights", "dropped", "round-skipped", "quarantine-applied"} | {
    f"run-{status}" for status in ("finished", "failed", "stopped")
}
"""Audit events that the tables show better, or that the round's own line or the summary tells already."""
FIELDS = {"line", "time", "event", "previous", "hash", "round", "client", "reason"}


@dataclass(frozen=True)
class Happening:
    """One event."""

    sort: str
    text: str
    round: int | None = None
    time: float | None = None

    def plain(self) -> dict[str, Any]:
        told = {"sort": self.sort, "text": self.text[:LONGEST], "round": self.round, "time": self.time}
        return {name: value for name, value in told.items() if value is not None}


def of_round(record: RoundRecord, config: Mapping[str, Any]) -> list[Happening]:
    """Skipped rounds, dropped updates, a model that broke, the onset and end of an attack."""
    number, told = record.round, []
    attack = config.get("attack")
    byzantine = (config.get("record") or {}).get("attack", {}).get("byzantine")
    if isinstance(attack, dict) and byzantine:
        if attack.get("start") == number:
            told.append(
                Happening("attack", f"the attack begins: {attack.get('name')}, {_some(byzantine)}", number)
            )
        if attack.get("end") == number:
            told.append(Happening("attack", "the attack is over", number))
    if record.skipped:
        told.append(Happening("skipped", f"the round was skipped: {record.skipped}", number))
    dropped = {who: one.reason for who, one in record.left_out.items() if one.status != "quarantined"}
    if dropped:
        words = "; ".join(f"{client}: {reason}" for client, reason in list(dropped.items())[:NAMED])
        more = f"; and {len(dropped) - NAMED} more" if len(dropped) > NAMED else ""
        told.append(Happening("dropped", f"dropped {words}{more}", number))
    if record.metrics is not None and record.metrics.get("auroc", 0.0) is None:
        told.append(Happening("broken", "the model's output is not finite", number))
    return told


def of_clients(
    round: int, clients: Sequence[ClientRecord], before: set[str]
) -> tuple[list[Happening], set[str]]:
    """Whose flag was raised or lifted in this round; and who is flagged after it.

    >>> of_clients(4, [ClientRecord(4, "a", flag=True), ClientRecord(4, "b", flag=False)], {"b"})
    ([Happening(sort='flagged', text='flagged: a', round=4, time=None),
      Happening(sort='cleared', text='no longer flagged: b', round=4, time=None)], {'a'})
    """
    raised = [record.client for record in clients if record.flag and record.client not in before]
    lifted = [record.client for record in clients if record.flag is False and record.client in before]
    told = []
    if raised:
        told.append(Happening("flagged", f"flagged: {_some(raised)}", round))
    if lifted:
        told.append(Happening("cleared", f"no longer flagged: {_some(lifted)}", round))
    return told, (before | set(raised)) - set(lifted)


def of_summary(summary: Summary | None) -> list[Happening]:
    """How the run ended."""
    if summary is None:
        return []
    status, reason = summary.status, summary.reason
    sort = "budget" if status == "stopped" and "budget" in str(reason) else status
    return [Happening(sort, status + (f": {reason}" if reason else ""), summary.rounds)]


def of_audit(line: Mapping[str, Any], round: int | None = None) -> list[Happening]:
    """A line of the audit log, unless it is one of those that every round has for every client."""
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
    return [Happening(event, text, round, float(time) if isinstance(time, int | float) else None)]


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) <= 80


def _some(clients: Sequence[str]) -> str:
    named = ", ".join(map(str, clients[:NAMED]))
    return named + (f" and {len(clients) - NAMED} more" if len(clients) > NAMED else "")
