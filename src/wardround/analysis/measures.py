"""Every number about a run, by name: from its folder, from the same run without attack, and from FedAvg's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wardround.analysis.clients import minority_clients, own_metrics, shares_of_weight, variation
from wardround.analysis.patient_groups import group_measures
from wardround.analysis.runs import CLEAN, Run
from wardround.records import ClientRecord
from wardround.runs.summary import detection, flagged, rates_by_round, suppressed

__all__ = ["BASELINE", "MEASURES", "Measure", "Measured", "measure_all"]

BASELINE = "fedavg"
"""The rule whose time is the unit of the measure `aggregate_vs_fedavg`, and the last choice of a reference."""
CALIBRATION = ("threshold", "sensitivity", "specificity", "brier", "ece")
COSTS = {"aggregate_ms": "aggregate_vs_fedavg", "memory_mb": "memory_vs_fedavg"}
ONSET_WINDOW, LATE_WINDOW = 10, 20


@dataclass(frozen=True)
class Measure:
    """The name of a number in tables, and what it means."""

    heading: str
    meaning: str
    higher_is_better: bool | None = None
    percent: bool = False


MEASURES: dict[str, Measure] = {
    "auroc": Measure("AUROC", "test AUROC after the last round", True),
    "auprc": Measure("AUPRC", "test AUPRC after the last round", True),
    "accuracy": Measure("accuracy", "test accuracy after the last round", True),
    "f1": Measure("F1", "test F1 after the last round", True),
    "loss": Measure("loss", "test loss after the last round", False),
    "threshold": Measure("threshold", "probability above which a patient counts as positive, chosen on validation"),
    "sensitivity": Measure("sensitivity", "positive test patients called positive", True),
    "specificity": Measure("specificity", "negative test patients called negative", True),
    "brier": Measure("Brier score", "mean squared error of the predicted probabilities", False),
    "ece": Measure("calibration error", "mean distance of predicted probability and observed share (ECE)", False),
    "group_gap_auroc": Measure("AUROC gap", "largest difference of AUROC between groups of one attribute", False),
    "group_gap_sensitivity": Measure("sensitivity gap", "largest difference of sensitivity between groups", False),
    "worst_group_auroc": Measure("worst group", "lowest AUROC of a patient group", True),
    "mean_auroc": Measure("AUROC, all rounds", "test AUROC, mean over all evaluated rounds", True),
    "broken_rounds": Measure("broken rounds", "evaluated rounds in which the model's output was not finite", False),
    "delta_auroc": Measure("ΔAUROC", "clean minus attacked, same setting, method and seed", False),
    "delta_auprc": Measure("ΔAUPRC", "clean minus attacked, same setting, method and seed", False),
    "rounds_to_90": Measure(
        "rounds to 90 %", "first round at 90 % of the best AUROC of any clean run of the setting and seed", False
    ),
    "robustness_index": Measure("robustness index", "accuracy under attack over accuracy without", True),
    "attack_success": Measure("attack success", "triggered test samples given the backdoor's label", False, True),
    "flag_tpr": Measure("flagged: TPR", "attacking client-rounds flagged", True, True),
    "flag_fpr": Measure("flagged: FPR", "honest client-rounds flagged", False, True),
    "flag_fnr": Measure("flagged: FNR", "attacking client-rounds not flagged", False, True),
    "flag_precision": Measure("flagged: precision", "flags that hit an attacker", True, True),
    "flag_f1": Measure("flagged: F1", "of precision and recall over client-rounds", True, True),
    "flag_latency": Measure("flagged: latency", "rounds until TPR ≥ 0.8 holds for 3 rounds; none: never", False),
    "flag_tpr_onset": Measure("TPR at onset", f"first {ONSET_WINDOW} rounds of the attack, by flags", True, True),
    "flag_tpr_late": Measure("TPR late", f"last {LATE_WINDOW} rounds of the run, by flags", True, True),
    "flag_fpr_before": Measure("FPR before", "rounds before the onset, by flags", False, True),
    "flag_fpr_late": Measure("FPR late", f"last {LATE_WINDOW} rounds of the run, by flags", False, True),
    "low_tpr": Measure("suppressed: TPR", "attacking client-rounds with a weight below a tenth of 1/N", True, True),
    "low_fpr": Measure("suppressed: FPR", "honest client-rounds with a weight below a tenth of 1/N", False, True),
    "low_fnr": Measure("suppressed: FNR", "attacking client-rounds with a tenth of 1/N or more", False, True),
    "low_latency": Measure("suppressed: latency", "as for flags, by weights", False),
    "drift_fpr": Measure("false alarms, drift", "honest drifting clients suppressed once they move", False, True),
    "drift_flag_fpr": Measure("flags, drift", "honest drifting clients flagged once they move", False, True),
    "score_variation": Measure("score variation", "of honest clients' scores over rounds (sd/mean)", False),
    "threshold_variation": Measure("threshold variation", "of honest clients' clipping thresholds (sd/mean)", False),
    "minority_share": Measure(
        "minority's weight", "mean weight of the honest quarter with the rarest class mix, 1 is an equal share", True
    ),
    "least_minority_share": Measure("least of them", "the least weighted of that quarter", True),
    "worst_client_auroc": Measure("worst client", "lowest AUROC on a client's own test patients", True),
    "mean_client_auroc": Measure("mean client", "AUROC on a client's own test patients, mean over clients", True),
    "aggregate_ms": Measure("server ms", "median milliseconds per round that the rule takes", False),
    "aggregate_vs_fedavg": Measure("× FedAvg", "that time over FedAvg's in the same setting", False),
    "memory_mb": Measure("memory MB", "peak resident memory of the run's process", False),
    "memory_vs_fedavg": Measure("memory × FedAvg", "that memory over FedAvg's in the same setting", False),
}  # fmt: skip


@dataclass
class Measured:
    """A run with its numbers; None where a number does not exist for it."""

    run: Run
    values: dict[str, float | None] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    """Each client's mean weight as a multiple of an equal share."""

    def __getitem__(self, name: str) -> float | None:
        return self.values.get(name)


def measure_all(runs: Iterable[Run], progress: Callable[[int], Any] = lambda done: None) -> list[Measured]:
    """Measure every finished run, also against the same run without attack and against FedAvg."""
    finished = [run for run in runs if run.finished]
    measured = []
    for done, run in enumerate(finished, start=1):
        clients = run.clients  # read once: this is most of the work
        shares = shares_of_weight(clients)
        measured.append(Measured(run, _own(run, clients, shares), shares))
        progress(done)
    clean = {(m.run.setting, m.run.method, m.run.seed): m for m in measured if m.run.attack == CLEAN}
    best: dict[tuple[str, int], float] = {}
    plain: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in measured:
        if m.run.attack == CLEAN:
            key = (m.run.setting, m.run.seed)
            best[key] = max(best.get(key, 0.0), *(value for _, value in m.run.curve), 0.0)
        if m.run.config["aggregator"]["name"] == BASELINE:
            for cost in COSTS:
                if value := m[cost]:
                    plain[m.run.setting, cost].append(value)
    for m in measured:
        run = m.run
        m.values |= _against_clean(m, clean.get((run.setting, run.method, run.seed)))
        target = best.get((run.setting, run.seed))
        m.values["rounds_to_90"] = None if not target else _first_round_at(run, 0.9 * target)
        for cost, ratio in COSTS.items():
            unit, spent = plain[run.setting, cost], m[cost]
            m.values[ratio] = spent / fmean(unit) if unit and spent is not None else None
    return measured


def _own(run: Run, clients: list[ClientRecord], shares: dict[str, float]) -> dict[str, float | None]:
    curve = [value for _, value in run.curve]
    values: dict[str, float | None] = {name: run.final(name) for name in ("auroc", "auprc", "accuracy", "f1")}
    values |= {name: run.final(name) for name in ("loss", "attack_success", *CALIBRATION)}
    values |= group_measures(run)
    values["mean_auroc"] = fmean(curve) if curve else None
    values["broken_rounds"] = run.broken_rounds
    values |= _verdicts(run, clients)
    values["score_variation"] = variation(clients, "score")
    values["threshold_variation"] = variation(clients, "threshold")
    minority = [shares[client] for client in minority_clients(run) if client in shares]
    values["minority_share"] = fmean(minority) if minority else None
    values["least_minority_share"] = min(minority, default=None)
    own = own_metrics(run, "auroc")
    values["worst_client_auroc"] = min(own.values(), default=None)
    values["mean_client_auroc"] = fmean(own.values()) if own else None
    spent = sorted(record.seconds["aggregate"] for record in run.rounds)
    values["aggregate_ms"] = 1000 * spent[len(spent) // 2] if spent else None
    values["memory_mb"] = max((record.memory_mb or 0.0 for record in run.rounds), default=None)
    return values


def _verdicts(run: Run, clients: list[ClientRecord]) -> dict[str, float | None]:
    """Rates over the whole run and over windows, by flags and by weights."""
    values: dict[str, float | None] = {}
    flags, low = flagged(clients), suppressed(clients)
    by_flags, by_weights = detection(clients, flags), detection(clients, low)
    for name in ("tpr", "fpr", "fnr", "precision", "f1", "latency"):
        values[f"flag_{name}"] = None if by_flags is None else by_flags[name]
    for name in ("tpr", "fpr", "fnr", "latency"):
        values[f"low_{name}"] = None if by_weights is None else by_weights[name]
    values |= _windows(run, clients)
    drifting = set(run.drifting)
    since = run.drift.get("start", 0)
    moving = [i for i, record in enumerate(clients) if record.client in drifting and record.round > since]
    values["drift_fpr"] = _mean([low[i] for i in moving])
    values["drift_flag_fpr"] = _mean([flags[i] for i in moving])
    return values


def _windows(run: Run, clients: list[ClientRecord]) -> dict[str, float | None]:
    rates = rates_by_round(clients, flagged(clients))
    last = max(rates, default=0)

    def over(rate: str, first: int, end: int) -> float | None:
        return _mean([of_round[rate] for number, of_round in rates.items() if first <= number < end])

    late = last - LATE_WINDOW + 1
    values = {"flag_tpr_late": over("tpr", late, last + 1), "flag_fpr_late": over("fpr", late, last + 1)}
    if run.onset is not None:
        values["flag_tpr_onset"] = over("tpr", run.onset, run.onset + ONSET_WINDOW)
        values["flag_fpr_before"] = over("fpr", 1, run.onset)
    return values


def _against_clean(m: Measured, clean: Measured | None) -> dict[str, float | None]:
    if clean is None or m.run.attack == CLEAN:
        return {}
    values: dict[str, float | None] = {}
    for name in ("auroc", "auprc"):
        before, after = clean[name], m[name]
        values[f"delta_{name}"] = None if before is None or after is None else before - after
    before, after = clean["accuracy"], m["accuracy"]
    values["robustness_index"] = after / before if before and after is not None else None
    return values


def _first_round_at(run: Run, target: float) -> int | None:
    return next((number for number, value in run.curve if value >= target), None)


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
