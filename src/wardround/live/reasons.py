"""Why a client was flagged, in words: what stands out in its line, next to the others of the round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

__all__ = ["Peers", "columns_of", "number", "stands_out", "why"]

KNOWN = {"round", "client", "byzantine", "attacking", "num_samples", "weight", "score", "flag", "dropped"}
"""What every line has; the rest are the rule's own columns."""
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


def columns_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The rule's own numbers in a client's line."""
    found = {name: number(value) for name, value in line.items() if name not in KNOWN}
    return {name: value for name, value in found.items() if value is not None}


class Peers:
    """The clients of a round that were neither flagged nor dropped: what is usual among them, column by column."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._lines = lines
        self._usual: dict[str, tuple[float, float] | None] = {}

    def usual(self, column: str) -> tuple[float, float] | None:
        """Median and usual distance from it; None where too few tell a number."""
        if column not in self._usual:
            told = [value for line in self._lines if (value := number(line.get(column))) is not None]
            middle = median(told) if len(told) >= FEW else 0.0
            distance = median(abs(value - middle) for value in told) if len(told) >= FEW else 0.0
            self._usual[column] = (middle, SPREAD * distance) if len(told) >= FEW else None
        return self._usual[column]


def why(line: Mapping[str, Any], peers: Peers) -> str:
    """One sentence on a flagged or dropped client; empty for one that is neither.

    >>> peers = Peers([{"norm": 1.0}, {"norm": 1.1}, {"norm": 0.9}, {"norm": 1.2}])
    >>> why({"flag": True, "score": 7.2, "norm": 12.0}, peers)
    'score 7.2; norm 12, the others 1.05'
    >>> why({"flag": True, "score": 7.2, "why": 4.0}, peers)
    "too close to another client's row; score 7.2"
    """
    if line.get("dropped"):
        return f"dropped: {line['dropped']}"
    if not line.get("flag"):
        return ""
    score = number(line.get("score"))
    verdict = VERDICTS.get(int(number(line.get("why")) or 0))
    told = [verdict] if verdict else []
    told += [] if score is None else [f"score {score:.3g}"]
    return "; ".join(told + stands_out(line, peers)) or "flagged by the rule"


def stands_out(line: Mapping[str, Any], peers: Peers, most: int = 2) -> list[str]:
    """The columns in which a client is farthest from the median of its peers, farthest first."""
    found = []
    for name, value in columns_of(line).items():
        usual = peers.usual(name)
        if (
            usual is None or name == "why" or value == line.get("score")
        ):  # a rule may tell its score as a column, too
            continue
        middle, spread = usual
        distance = abs(value - middle) / max(spread, 1e-9 + 1e-6 * abs(middle))
        if distance > FAR:
            found.append((distance, f"{name} {value:.3g}, the others {middle:.3g}"))
    return [words for _, words in sorted(found, reverse=True)[:most]]
