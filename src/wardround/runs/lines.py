"""Records from unchecked lines: malformed parts of a line are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from wardround.records import ClientRecord, ReasonKind, RoundRecord, Status, Summary

__all__ = ["LONGEST_NAME", "read_client", "read_round", "read_summary"]

LONGEST_NAME = 200  # of a client: names come from the clients themselves
MAPPINGS = {"seconds", "metrics", "validation", "per_client", "privacy", "left_out", "dropped"}
"""What a round's line holds as mappings; `dropped` in schema 1."""
UNREAD = {"per_client_reasons", "thresholds", "calibration", "groups", "gaps"}
"""Details of an evaluation that neither the live page nor `wardround status` shows."""


def read_round(line: Mapping[str, Any]) -> RoundRecord | None:
    """A line of rounds.jsonl; None for one without a round's number.

    >>> record = read_round({"round": 1, "seconds": [], "metrics": {"auroc": 0.5}, "left_out": {"a": 3}})
    >>> record.round, record.seconds, record.metrics, record.left_out
    (1, {}, {'auroc': 0.5}, {})
    """
    if not isinstance(line.get("round"), int):
        return None
    known = {name: value for name, value in line.items() if name not in UNREAD}
    values = {name: value for name, value in known.items() if name not in MAPPINGS or isinstance(value, dict)}
    values["reasons"] = _reasons(line.get("reasons"))
    if "left_out" in values:
        values["left_out"] = {client: one for client, one in values["left_out"].items() if _is_left_out(one)}
    return RoundRecord.from_line(values)


def read_client(line: Mapping[str, Any]) -> ClientRecord | None:
    """A line of clients.jsonl; None for one without a round's number or without a client."""
    if not isinstance(line.get("round"), int) or not isinstance(line.get("client"), str):
        return None
    return ClientRecord.from_line({**line, "client": line["client"][:LONGEST_NAME]})


def read_summary(values: object) -> Summary | None:
    """What summary.json holds; None where it does not say how the run ended."""
    if not isinstance(values, dict) or not isinstance(values.get("status"), str):
        return None
    return Summary.from_plain(values)


def _reasons(reasons: object) -> dict[str, dict[str, str]]:
    return {
        str(name): {"kind": one["kind"], "text": str(one.get("text"))[:LONGEST_NAME]}
        for name, one in (reasons.items() if isinstance(reasons, dict) else ())
        if isinstance(one, dict) and one.get("kind") in get_args(ReasonKind)
    }


def _is_left_out(one: object) -> bool:
    return isinstance(one, dict) and one.get("status") in get_args(Status)
