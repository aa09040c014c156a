"""What a run came to: a pure function of its records, so that a resumed run ends with the same bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from wardround.records import (
    ClientRecord,
    EvaluationDetails,
    Metrics,
    RoundRecord,
    RunStatus,
    Summary,
    main_metric,
    main_value,
)

__all__ = [
    "Verdicts",
    "detection",
    "detection_latency",
    "flagged",
    "rates_by_round",
    "summarize",
    "suppressed",
    "suppression",
    "why_no_auroc",
]

SUPPRESSED_BELOW = 0.1  # a weight below this share of 1/N counts as suppressed
LATENCY_TPR, LATENCY_ROUNDS = 0.8, 3  # detected: TPR ≥ 0.8 in three rounds in a row
PHASES = ("train", "attack", "aggregate", "evaluate")

Verdicts = Sequence[bool | None]
"""Aligned with client records: was this client found in this round? None where the rule says nothing."""


def summarize(
    rounds: Sequence[RoundRecord],
    clients: Sequence[ClientRecord],
    status: RunStatus,
    reason: str | None = None,
) -> Summary:
    """Final and best test metrics, detection, suppression, convergence and cost of a run.

    `best` is the test result of the round that was best on validation: picking the best test round
    would be looking at the answer. A run that is finished but for a model that its last round still lacks has diverged.
    """
    if status == "finished" and rounds and (divergence := rounds[-1].diverged) is not None:
        status, reason = "diverged", f"{divergence}, since round {_diverged_since(rounds)}"
    evaluated = [record for record in rounds if record.metrics]
    final = evaluated[-1] if evaluated else None
    validated = [record for record in evaluated if record.validation]
    best = max(validated, key=lambda record: _main(record.validation), default=None)
    return Summary(
        status=status,
        rounds=len(rounds),
        reason=reason or None,
        final=None if final is None else {"round": final.round, **(final.metrics or {})},
        best=None if best is None else {"round": best.round, **(best.metrics or {})},
        rounds_to_90=_rounds_to(evaluated, 0.9),
        detection=detection(clients, flagged(clients)),
        suppression=suppression(clients),
        skipped_rounds=sum(1 for record in rounds if record.skipped),
        dropped_updates=sum(1 for record in clients if record.status != "ok"),
        overhead=_overhead(rounds),
        privacy=(rounds[-1].privacy or None) if rounds else None,
        evaluation=_details({"final": final, "best": best}),
    )


def _details(rounds: Mapping[str, RoundRecord | None]) -> dict[str, Any] | None:
    """Calibration, patient groups and the like. Reasons per client stay in rounds.jsonl: there may be thousands."""
    details = {
        name: replace(record.details, per_client_reasons={}).line()
        for name, record in rounds.items()
        if record is not None
    }
    return details if any(details.values()) else None


def _diverged_since(rounds: Sequence[RoundRecord]) -> int:
    first = rounds[-1].round
    for record in reversed(rounds):
        if record.diverged is not None:
            first = record.round
        elif record.metrics is not None:  # a round without evaluation says nothing
            break
    return first


def flagged(clients: Iterable[ClientRecord]) -> list[bool | None]:
    """The rule's own verdict on each record."""
    return [record.flag for record in clients]


def suppressed(clients: Sequence[ClientRecord]) -> list[bool | None]:
    """Was the weight below a tenth of an equal share? None where the rule gives no weights."""
    present: dict[int, int] = defaultdict(int)
    for record in clients:
        present[record.round] += record.weight is not None
    return [
        None if record.weight is None else record.weight < SUPPRESSED_BELOW / present[record.round]
        for record in clients
    ]


def detection(clients: Sequence[ClientRecord], verdicts: Verdicts) -> dict[str, Any] | None:
    """Rates over client-rounds: Byzantine clients while they attack against benign clients at any time.

    A Byzantine client outside its window behaves and is left out. Broken clients are neither: while their fault is on
    they have a rate of their own, `fault_tpr`. None where the rule gives no verdict.
    """
    known = [
        (record, verdict) for record, verdict in zip(clients, verdicts, strict=True) if verdict is not None
    ]
    if not known:
        return None
    attacking = [verdict for record, verdict in known if record.attacking]
    benign = [verdict for record, verdict in known if record.is_honest]
    failing = [verdict for record, verdict in known if record.failing]
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
        "latency": detection_latency(clients, verdicts),
        **({"fault_tpr": sum(failing) / len(failing)} if failing else {}),
    }


def suppression(clients: Sequence[ClientRecord]) -> dict[str, Any] | None:
    """Detection as rules without flags do it: a weight below a tenth of an equal share."""
    rates = detection(clients, suppressed(clients))
    return None if rates is None else {key: rates[key] for key in ("tpr", "fpr", "fault_tpr") if key in rates}


def rates_by_round(clients: Sequence[ClientRecord], verdicts: Verdicts) -> dict[int, dict[str, float | None]]:
    """TPR and FPR of every round in which the rule gives a verdict."""
    attacking: dict[int, list[bool]] = defaultdict(list)
    benign: dict[int, list[bool]] = defaultdict(list)
    rounds = set()
    for record, verdict in zip(clients, verdicts, strict=True):
        if verdict is not None:
            rounds.add(record.round)
            if record.attacking:
                attacking[record.round].append(verdict)
            if record.is_honest:
                benign[record.round].append(verdict)
    return {
        number: {"tpr": _mean(attacking[number]), "fpr": _mean(benign[number])} for number in sorted(rounds)
    }


def detection_latency(clients: Sequence[ClientRecord], verdicts: Verdicts) -> int | None:
    """Rounds from the onset of the attack until TPR ≥ 0.8 holds for three rounds in a row; None: never."""
    rates = [
        (number, rate["tpr"])
        for number, rate in rates_by_round(clients, verdicts).items()
        if rate["tpr"] is not None
    ]
    for start in range(len(rates) - LATENCY_ROUNDS + 1):
        if all((tpr or 0) >= LATENCY_TPR for _, tpr in rates[start : start + LATENCY_ROUNDS]):
            return rates[start][0] - rates[0][0]
    return None


def _main(metrics: Metrics | None) -> float:
    """AUROC or C-index; −∞ where there is none."""
    value = main_value(metrics)
    return float("-inf") if value is None else value


def _rounds_to(evaluated: Sequence[RoundRecord], share: float) -> int | None:
    """The first round that reaches `share` of the run's own highest AUROC (of a survival task: C-index)."""
    highest = max((_main(record.metrics) for record in evaluated), default=float("-inf"))
    reached = (record.round for record in evaluated if _main(record.metrics) >= share * highest > 0)
    return next(reached, None)


def _overhead(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Where the time went, and the memory."""
    return {
        "seconds_per_round": {
            phase: _mean([record.seconds.get(phase) for record in rounds]) for phase in PHASES
        },
        "peak_memory_mb": max((record.memory_mb or 0.0 for record in rounds), default=None),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def why_no_auroc(
    final: Metrics | None, record: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None
) -> str | None:
    """Why a run has no AUROC (of a survival task: C-index) after its last round; None where it has one.

    Args:
        final: Its last test metrics.
        record: What its config.yaml records beside the configuration.
        evaluation: Its summary's `evaluation`, which has the reason; None: of an older version.

    >>> about = {"class_names": ["no", "yes"], "test_classes": [12, 0]}
    >>> why_no_auroc({"auroc": None, "loss": 0.4}, about)
    "all 12 test rows are 'no': an AUROC compares two classes"
    """
    if final is None:
        return "no round was evaluated"
    main = main_metric(final)
    if final.get(main) is not None:
        return None
    if main not in final:
        return "it was not measured"
    reasons = EvaluationDetails.from_line((evaluation or {}).get("final") or {}).reasons
    if main in reasons:
        return reasons[main].text
    if final.get("loss") is None:
        return "the model's output is not finite"
    counts = record.get("test_classes") or ()
    present = [
        (name, count) for name, count in zip(record.get("class_names") or (), counts, strict=False) if count
    ]
    if len(present) == 1:
        return f"all {present[0][1]} test rows are {present[0][0]!r}: an AUROC compares two classes"
    return "the test rows are all of one class: an AUROC compares two"
