"""Why a client was flagged, in words: the rule's own reason, and what stands out next to the other clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from wardround.errors import WardroundError
from wardround.records import ClientRecord

__all__ = ["Peers", "columns_of", "explain", "number", "reason_code", "rule_reasons", "stands_out"]

CODE = "why"  # the column with the code of a rule's reason
FEW = 3  # peers that a median needs
FAR = 3.0  # times the others' usual distance from their median
SPREAD = 1.4826  # makes the median distance comparable to a standard deviation


def number(value: Any) -> float | None:
    """A finite number; None for anything else that a line may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def columns_of(record: ClientRecord) -> dict[str, float]:
    """The rule's own numbers on a client."""
    return {name: known for name, value in record.columns.items() if (known := number(value)) is not None}


def rule_reasons(config: Mapping[str, Any]) -> Mapping[int, str]:
    """What the codes of a run's rule mean; empty for a rule that this installation does not know."""
    from wardround.runs.rule import rule_class  # brings torch along, so only for runs that have codes

    try:
        rule = rule_class(config)
    except WardroundError:  # a broken plug-in must not hide the run
        return {}
    return {} if rule is None else rule.reasons


class Peers:
    """What is usual, column by column, among the clients of a round that were neither flagged nor left out."""

    def __init__(self, records: Sequence[ClientRecord]) -> None:
        self._records = records
        self._usual: dict[str, tuple[float, float] | None] = {}

    def usual(self, column: str) -> tuple[float, float] | None:
        """Median and usual distance from it; None where too few clients have a number."""
        if column not in self._usual:
            values = [value for one in self._records if (value := number(one.get(column))) is not None]
            middle = median(values) if len(values) >= FEW else 0.0
            distance = median(abs(value - middle) for value in values) if len(values) >= FEW else 0.0
            self._usual[column] = (middle, SPREAD * distance) if len(values) >= FEW else None
        return self._usual[column]


def explain(record: ClientRecord, peers: Peers, reasons: Mapping[int, str]) -> str:
    """One sentence on a client that was flagged or left out; empty for one that is neither.

    Args:
        record: The client in one round.
        peers: The other clients of the round.
        reasons: What the rule's codes mean.

    >>> peers = Peers([ClientRecord(1, "a", columns={"norm": norm}) for norm in (1.0, 1.1, 0.9, 1.2)])
    >>> explain(ClientRecord(1, "b", flag=True, score=7.2, columns={"norm": 12.0}), peers, {})
    'score 7.2; norm 12, the others 1.05'
    >>> explain(ClientRecord(1, "b", flag=True, score=7.2, columns={"why": 4.0}), peers, {4: "a copy of another"})
    'a copy of another; score 7.2'
    >>> explain(ClientRecord(1, "b", flag=True, columns={"why": 4.0}), peers, {})
    'reason 4 of the rule'
    >>> explain(ClientRecord(1, "b", "absent", "no answer within 600 s"), peers, {})
    'absent: no answer within 600 s'
    """
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.flag:
        return ""
    parts = []
    if code := reason_code(record):
        parts.append(reasons.get(code, f"reason {code} of the rule"))
    if (score := number(record.score)) is not None:
        parts.append(f"score {score:.3g}")
    return "; ".join(parts + stands_out(record, peers)) or "flagged by the rule"


def reason_code(record: ClientRecord) -> int:
    """The code of the rule's reason; 0 where it gives none."""
    return int(number(record.get(CODE)) or 0)


def stands_out(record: ClientRecord, peers: Peers, most: int = 2) -> list[str]:
    """The columns in which a client is farthest from the median of its peers, farthest first."""
    distances = []
    for name, value in columns_of(record).items():
        usual = peers.usual(name)
        # A rule may have its score among its columns, too.
        if usual is None or name == CODE or value == record.score:
            continue
        middle, spread = usual
        distance = abs(value - middle) / max(spread, 1e-9 + 1e-6 * abs(middle))
        if distance > FAR:
            distances.append((distance, f"{name} {value:.3g}, the others {middle:.3g}"))
    return [words for _, words in sorted(distances, reverse=True)[:most]]
