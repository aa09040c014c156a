"""Why a client was flagged, in words: what stands out in its line, next to the others of the round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

__all__ = ["columns_of", "number", "stands_out", "why"]

KNOWN = {"round", "client", "byzantine", "attacking", "num_samples", "weight", "score", "flag", "dropped"}
"""What every line has; the rest are the rule's own columns."""
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


def why(line: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on a flagged or dropped client; empty for one that is neither.

    >>> peers = [{"norm": 1.0}, {"norm": 1.1}, {"norm": 0.9}, {"norm": 1.2}]
    >>> why({"flag": True, "score": 7.2, "norm": 12.0}, peers)
    'score 7.2; norm 12, the others 1.05'
    """
    if line.get("dropped"):
        return f"dropped: {line['dropped']}"
    if not line.get("flag"):
        return ""
    score = number(line.get("score"))
    told = [] if score is None else [f"score {score:.3g}"]
    return "; ".join(told + stands_out(line, peers)) or "flagged by the rule"


def stands_out(line: Mapping[str, Any], peers: Sequence[Mapping[str, Any]], most: int = 2) -> list[str]:
    """The columns in which a client is farthest from the median of its unflagged peers, farthest first."""
    found = []
    for name, value in columns_of(line).items():
        if value == line.get("score"):  # a rule may tell its score as a column, too
            continue
        others = [other for peer in peers if (other := number(peer.get(name))) is not None]
        if len(others) < 3:
            continue
        middle = median(others)
        usual = SPREAD * median(abs(other - middle) for other in others)
        distance = abs(value - middle) / max(usual, 1e-9 + 1e-6 * abs(middle))
        if distance > FAR:
            found.append((distance, f"{name} {value:.3g}, the others {middle:.3g}"))
    return [words for _, words in sorted(found, reverse=True)[:most]]
