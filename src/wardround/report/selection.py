"""What a report of very many runs shows: its page has a bounded size and says what it leaves out.

A figure with fifty curves shows nothing, and a page with thousands of them does not open. The numbers of all runs are
in the tables of `wardround analyze --out`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from wardround.analysis.measures import BASELINE
from wardround.analysis.runs import CLEAN, Run

__all__ = ["BROAD", "ELSEWHERE", "NARROW", "ROWS_SHOWN", "Limits", "Selection", "select", "spread"]

ROWS_SHOWN = 600  # of a table on the page
ELSEWHERE = (
    "All numbers: `wardround analyze RUNS --out TABLES`. Other figures: `wardround report` of fewer folders."
)

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """The most that figures show."""

    settings: int
    methods: int
    attacks: int
    """Beside the runs without attack."""
    seeds: int


NARROW = Limits(settings=6, methods=12, attacks=7, seeds=20)
"""Of figures with a curve, box or mark per method."""
BROAD = Limits(settings=12, methods=40, attacks=40, seeds=1000)
"""Of figures with a cell or a row per method."""


@dataclass(frozen=True)
class Selection:
    """The runs that figures show, and a sentence about those that they do not."""

    runs: Sequence[Run]
    note: str
    """Empty where all are shown."""


def select(runs: Sequence[Run], limits: Limits) -> Selection:
    """Choose settings, methods, attacks and seeds within the limits.

    Settings are spread over their names. Of the methods those with the best mean stay, and FedAvg; of the attacks those
    that leave least on average; of the seeds the first.
    """
    quality: dict[tuple[str, str], list[float]] = defaultdict(list)
    names: dict[str, set[str]] = {"setting": set(), "method": set(), "attack": set()}
    plain = {run.method for run in runs if run.config["aggregator"]["name"] == BASELINE}
    for run in runs:
        for kind, name in (("setting", run.setting), ("method", run.method), ("attack", run.attack)):
            names[kind].add(name)
            if (value := run.quality) is not None:
                quality[kind, name].append(value)

    def mean(kind: str, name: str) -> float:
        return fmean(quality[kind, name]) if (kind, name) in quality else 0.0

    settings = set(spread(sorted(names["setting"]), limits.settings))
    best = sorted(names["method"], key=lambda name: (name not in plain, -mean("method", name), name))
    methods = set(best[: limits.methods])
    worst = sorted(names["attack"] - {CLEAN}, key=lambda name: (mean("attack", name), name))
    attacks = {CLEAN, *worst[: limits.attacks]}
    seeds = set(sorted({run.seed for run in runs})[: limits.seeds])
    kept = [
        run
        for run in runs
        if run.setting in settings and run.method in methods and run.attack in attacks and run.seed in seeds
    ]
    said = [
        f"{shown} of {total} {words}"
        for shown, total, words in (
            (len(settings), len(names["setting"]), "settings"),
            (len(methods), len(names["method"]), "rules (those with the best mean, and FedAvg)"),
            (len(attacks) - 1, len(worst), "attacks (those that leave least on average)"),
            (len(seeds), len({run.seed for run in runs}), "seeds"),
        )
        if shown < total
    ]
    return Selection(kept, f"{_listed(said)}." if said else "")


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many items, evenly spread over all, the first and the last among them.

    >>> spread([1, 2, 3, 4, 5, 6, 7], 3), spread([1, 2], 3), spread([1, 2], 1)
    ([1, 4, 7], [1, 2], [1])
    """
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / max(1, most - 1))] for place in range(most)]


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
