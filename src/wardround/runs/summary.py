"""What a run came to: a pure function of its lines, so that a resumed run ends with the same bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

__all__ = ["detection", "detection_latency", "rates_by_round", "summarize", "suppression"]

SUPPRESSED_BELOW = 0.1  # a weight below this share of 1/N counts as suppressed
LATENCY_TPR, LATENCY_ROUNDS = 0.8, 3  # detected: TPR ≥ 0.8 in three rounds in a row

Lines = Sequence[dict[str, Any]]


def summarize(rounds: Lines, clients: Lines) -> dict[str, Any]:
    """Final and best test metrics, detection, suppression, convergence, cost.

    `best` is the test result of the round that was best on validation: picking the best test round
    would be looking at the answer.
    """
    judged = [line for line in rounds if line.get("metrics")]
    final = judged[-1] if judged else None
    best = max(judged, key=lambda line: _of(line, "validation"), default=None)
    return {
        "rounds": len(rounds),
        "final": None if final is None else {"round": final["round"], **final["metrics"]},
        "best": None if best is None else {"round": best["round"], **best["metrics"]},
        "rounds_to_90": _rounds_to(judged, 0.9),
        "detection": detection(clients, "flag"),
        "suppression": suppression(clients),
        "skipped_rounds": sum(1 for line in rounds if line.get("skipped")),
        "dropped_updates": sum(1 for line in clients if line.get("dropped")),
        "overhead": _overhead(rounds),
        **({"privacy": rounds[-1]["privacy"]} if rounds and rounds[-1].get("privacy") else {}),
    }


def _of(line: dict[str, Any], split: str) -> float:
    value = (line.get(split) or {}).get("auroc")
    return float("-inf") if value is None else value


def _rounds_to(judged: Lines, share: float) -> int | None:
    """The first round that reaches `share` of the run's own highest AUROC."""
    highest = max((_of(line, "metrics") for line in judged), default=float("-inf"))
    return next((line["round"] for line in judged if _of(line, "metrics") >= share * highest > 0), None)


def detection(clients: Lines, verdict: str) -> dict[str, Any] | None:
    """Rates over client-rounds: Byzantine clients while they attack against benign clients at any time.

    A Byzantine client outside its window behaves and is left out. None where the rule gives no verdict.
    """
    lines = [line for line in clients if line.get(verdict) is not None]
    if not lines:
        return None
    attacking = [line[verdict] for line in lines if line["attacking"]]
    benign = [line[verdict] for line in lines if not line["byzantine"]]
    hits, alarms = sum(attacking), sum(benign)
    tpr, fpr = _ratio(hits, len(attacking)), _ratio(alarms, len(benign))
    precision = _ratio(hits, hits + alarms) if attacking else None
    f1 = _ratio(2 * hits, 2 * hits + alarms + len(attacking) - hits) if attacking else None
    return {
        "tpr": tpr,
        "fpr": fpr,
        "fnr": None if tpr is None else 1 - tpr,
        "precision": precision,
        "recall": tpr,
        "f1": f1,
        "latency": detection_latency(lines, verdict),
    }


def suppression(clients: Lines) -> dict[str, Any] | None:
    """Detection as rules without flags do it: a weight below a tenth of an equal share."""
    weighted = [line for line in clients if line.get("weight") is not None]
    present: dict[int, int] = defaultdict(int)
    for line in weighted:
        present[line["round"]] += 1
    judged = [
        {**line, "suppressed": line["weight"] < SUPPRESSED_BELOW / present[line["round"]]}
        for line in weighted
    ]
    rates = detection(judged, "suppressed")
    return None if rates is None else {"tpr": rates["tpr"], "fpr": rates["fpr"]}


def rates_by_round(clients: Lines, verdict: str) -> dict[int, dict[str, float | None]]:
    """TPR and FPR of every round."""
    by_round: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in clients:
        if line.get(verdict) is not None:
            by_round[line["round"]].append(line)
    return {
        number: {
            "tpr": _mean([line[verdict] for line in lines if line["attacking"]]),
            "fpr": _mean([line[verdict] for line in lines if not line["byzantine"]]),
        }
        for number, lines in sorted(by_round.items())
    }


def detection_latency(clients: Lines, verdict: str = "flag") -> int | None:
    """Rounds from the onset of the attack until TPR ≥ 0.8 holds for three rounds in a row; None: never."""
    rates = [
        (number, rate["tpr"])
        for number, rate in rates_by_round(clients, verdict).items()
        if rate["tpr"] is not None
    ]
    for start in range(len(rates) - LATENCY_ROUNDS + 1):
        if all((tpr or 0) >= LATENCY_TPR for _, tpr in rates[start : start + LATENCY_ROUNDS]):
            return rates[start][0] - rates[0][0]
    return None


def _overhead(rounds: Lines) -> dict[str, Any]:
    """Where the time went, and the rule's cost as a multiple of a plain weighted mean of the same rows."""
    phases = ("train", "attack", "aggregate", "evaluate")
    mean_seconds = {phase: _mean([line["seconds"].get(phase) for line in rounds]) for phase in phases}
    plain = [line["seconds"]["plain_mean"] for line in rounds if "plain_mean" in line["seconds"]]
    spent = [line["seconds"]["aggregate"] for line in rounds if "plain_mean" in line["seconds"]]
    return {
        "seconds_per_round": mean_seconds,
        "aggregate_over_plain_mean": median(spent) / max(median(plain), 1e-9) if plain else None,
        "peak_memory_mb": max((line.get("memory_mb", 0.0) for line in rounds), default=None),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
