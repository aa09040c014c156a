"""Why a client was flagged, in words: what stands out in its line, next to the others of the round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from wardround.records import ClientRecord

__all__ = ["Peers", "columns_of", "number", "stands_out", "why"]

VERDICTS = {
    1: "norm far above that of clients of its size",
    2: "norm far above its own past",
    3: "as unrelated to the others as noise",
    4: "too close to another client's row",
    5: "points against its own past",
    6: "turns away or falls silent in step with another client",
    7: "contradicted the others in the first rounds",
    8: "on probation",
}
"""What the codes in the column `why` of `caac-guard` say."""
FEW = 3  # peers that a median needs
FAR = 3.0  # times the others' usual distance from their median
SPREAD = 1.4826  # makes the median distance comparable to a standard deviation


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else a line may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def columns_of(record: ClientRecord) -> dict[str, float]:
    """The rule's own numbers on a client."""
    return {name: known for name, value in record.columns.items() if (known := number(value)) is not None}


class Peers:
    """The clients of a round that were neither flagged nor left out: what is usual among them, column by column."""

    def __init__(self, records: Sequence[ClientRecord]) -> None:
        self._records = records
        self._usual: dict[str, tuple[float, float] | None] = {}

    def usual(self, column: str) -> tuple[float, float] | None:
        """Median and usual distance from it; None where too few tell a number."""
        if column not in self._usual:
            values = [value for one in self._records if (value := number(one.get(column))) is not None]
            middle = median(values) if len(values) >= FEW else 0.0
            distance = median(abs(value - middle) for value in values) if len(values) >= FEW else 0.0
            self._usual[column] = (middle, SPREAD * distance) if len(values) >= FEW else None
        return self._usual[column]


def why(record: ClientRecord, peers: Peers) -> str:
    """One sentence on a client that was flagged or left out; empty for one that is neither.

    >>> peers = Peers([ClientRecord(1, "a", columns={"norm": norm}) for norm in (1.0, 1.1, 0.9, 1.2)])
    >>> why(ClientRecord(1, "b", flag=True, score=7.2, columns={"norm": 12.0}), peers)
    'score 7.2; norm 12, the others 1.05'
    >>> why(ClientRecord(1, "b", flag=True, score=7.2, columns={"why": 4.0}), peers)
    "too close to another client's row; score 7.2"
    >>> why(ClientRecord(1, "b", "absent", "no answer within 600 s"), peers)
    'absent: no answer within 600 s'
    """
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    if not record.flag:
        return ""
    score = number(record.score)
    verdict = VERDICTS.get(int(number(record.get("why")) or 0))
    words = [verdict] if verdict else []
    words += [] if score is None else [f"score {score:.3g}"]
    return "; ".join(words + stands_out(record, peers)) or "flagged by the rule"


def stands_out(record: ClientRecord, peers: Peers, most: int = 2) -> list[str]:
    """The columns in which a client is farthest from the median of its peers, farthest first."""
    found = []
    for name, value in columns_of(record).items():
        usual = peers.usual(name)
        if (
            usual is None or name == "why" or value == record.score
        ):  # a rule may tell its score as a column, too
            continue
        middle, spread = usual
        distance = abs(value - middle) / max(spread, 1e-9 + 1e-6 * abs(middle))
        if distance > FAR:
            found.append((distance, f"{name} {value:.3g}, the others {middle:.3g}"))
    return [words for _, words in sorted(found, reverse=True)[:most]]
