"""Tables of results: methods side by side, mean over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

from wardround.analysis.runs import Run, quality_name

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """One method under one attack in one setting, over its seeds."""

    setting: str
    method: str
    attack: str
    seeds: int
    auroc: float | None
    auroc_sd: float | None
    loss_of_auroc: float | None
    """Clean AUROC of the same seeds minus this one (ΔAUROC): what the attack cost."""
    tpr: float | None
    """Share of attacking client-rounds that were flagged, or suppressed where the rule has no flags."""
    fpr: float | None
    verdict: str
    """Where TPR and FPR come from: flags, weights, or nothing."""
    unfinished: int
    measure: str = "AUROC"
    """What `auroc` is: of a survival task the C-index."""
    epsilon: float | None = None
    """The largest ε that one of the runs spent; None without differential privacy."""


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """One line per setting, method and attack; clean first."""
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.setting, run.method, run.attack].append(run)
    clean = {
        (run.setting, run.method, run.seed): run.quality
        for (_, _, attack), members in groups.items()
        if attack == "clean"
        for run in members
    }
    lines = [_line(key, members, clean) for key, members in groups.items()]
    return sorted(lines, key=lambda line: (line.setting, line.attack != "clean", line.attack, line.method))


def _line(
    key: tuple[str, str, str], runs: list[Run], clean: dict[tuple[str, str, int], float | None]
) -> Comparison:
    setting, method, attack = key
    finished = [run for run in runs if run.summary is not None and run.summary.final is not None]
    values = [value for run in finished if (value := run.quality) is not None]
    losses = [
        before - after
        for run in finished
        if (before := clean.get((setting, method, run.seed))) is not None
        and (after := run.quality) is not None
    ]
    summaries = [run.summary for run in finished if run.summary is not None]
    detections = [summary.detection for summary in summaries if summary.detection]
    has_flags = bool(detections)
    rates = detections or [summary.suppression for summary in summaries if summary.suppression]
    return Comparison(
        setting,
        method,
        attack,
        seeds=len(finished),
        auroc=_mean(values),
        auroc_sd=stdev(values) if len(values) > 1 else None,
        loss_of_auroc=None if attack == "clean" else _mean(losses),
        tpr=_mean([rate["tpr"] for rate in rates if rate["tpr"] is not None]),
        fpr=_mean([rate["fpr"] for rate in rates if rate["fpr"] is not None]),
        verdict=("flags" if has_flags else "weights") if rates else "none",
        unfinished=len(runs) - len(finished),
        measure=quality_name(runs),
        epsilon=max((spent for run in finished if (spent := run.epsilon) is not None), default=None),
    )


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
