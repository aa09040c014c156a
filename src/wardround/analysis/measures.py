"""Every number about a run, by name: from its folder, from the same run without attack, and from FedAvg's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wardround.analysis.clients import minority_clients
from wardround.analysis.patient_groups import group_measures
from wardround.analysis.runs import CLEAN, Run
from wardround.runs.digest import LATE_WINDOW, ONSET_WINDOW

__all__ = ["BASELINE", "MEASURES", "Measure", "Measured", "measure_all"]

BASELINE = "fedavg"
"""The rule whose time is the unit of the measure `aggregate_vs_fedavg`, and the last choice of a reference."""
CALIBRATION = ("threshold", "sensitivity", "specificity", "brier", "ece")
COSTS = {"aggregate_ms": "aggregate_vs_fedavg", "memory_mb": "memory_vs_fedavg"}


@dataclass(frozen=True)
class Measure:
    """The name of a number in tables, and what it means."""

    heading: str
    meaning: str
    higher_is_better: bool | None = None
    percent: bool = False


MEASURES: dict[str, Measure] = {
    "auroc": Measure("AUROC", "test AUROC after the last round", True),
    "c_index": Measure("C-index", "Harrell's C-index on the test rows of a survival task, after the last round", True),
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
    "group_gap_c_index": Measure("C-index gap", "largest difference of C-index between groups of one attribute", False),
    "group_gap_sensitivity": Measure("sensitivity gap", "largest difference of sensitivity between groups", False),
    "worst_group_auroc": Measure("worst group", "lowest AUROC of a patient group", True),
    "worst_group_c_index": Measure("worst group", "lowest C-index of a patient group", True),
    "mean_auroc": Measure("AUROC, all rounds", "test AUROC, mean over all evaluated rounds", True),
    "mean_c_index": Measure("C-index, all rounds", "test C-index, mean over all evaluated rounds", True),
    "broken_rounds": Measure("broken rounds", "evaluated rounds in which the model's output was not finite", False),
    "delta_auroc": Measure("ΔAUROC", "clean minus attacked, same setting, method and seed", False),
    "delta_c_index": Measure("ΔC-index", "clean minus attacked, same setting, method and seed", False),
    "delta_auprc": Measure("ΔAUPRC", "clean minus attacked, same setting, method and seed", False),
    "rounds_to_90": Measure(
        "rounds to 90 %",
        "first round at 90 % of the best AUROC (or C-index) of any clean run of the setting and seed",
        False,
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
    "suppressed_clients": Measure(
        "suppressed clients", "honest client-rounds with a weight below a tenth of FedAvg's", False, True
    ),
    "suppressed_patients": Measure("suppressed patients", "patients of these, of all honest ones", False, True),
    "suppressed_outcome": Measure(
        "suppressed, worst outcome", "the same among the patients of the outcome that suffers most", False, True
    ),
    "fault_flag_tpr": Measure("broken: flagged", "client-rounds of broken clients flagged", True, True),
    "fault_low_tpr": Measure("broken: suppressed", "the same with a weight below a tenth of 1/N", None, True),
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
    "worst_client_c_index": Measure("worst client", "lowest C-index on a client's own test patients", True),
    "mean_client_c_index": Measure("mean client", "C-index on a client's own test patients, mean over clients", True),
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
    shares: Mapping[str, float] = field(default_factory=dict)
    """Each client's mean weight as a multiple of an equal share."""

    def __getitem__(self, name: str) -> float | None:
        return self.values.get(name)

    def main(self, name: str = "{}") -> float | None:
        """The measure by which its model is compared, or one made of it: `m.main("delta_{}")` is ΔAUROC or ΔC-index."""
        return self.values.get(name.format(self.run.main))


def measure_all(runs: Iterable[Run], progress: Callable[[int], Any] = lambda done: None) -> list[Measured]:
    """Measure every finished run, also against the same run without attack and against FedAvg."""
    finished = [run for run in runs if run.finished]
    measured = []
    for done, run in enumerate(finished, start=1):
        measured.append(Measured(run, _own(run), run.digest.shares))
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


def _own(run: Run) -> dict[str, float | None]:
    shares, of_lines = run.digest.shares, dict(run.digest.values)
    values: dict[str, float | None] = {
        name: run.final(name) for name in ("auroc", "c_index", "auprc", "accuracy", "f1")
    }
    values |= {name: run.final(name) for name in ("loss", "attack_success", *CALIBRATION)}
    values |= group_measures(run)
    values[f"mean_{run.main}"] = of_lines.pop("mean_main")
    values[f"worst_client_{run.main}"] = of_lines.pop("worst_client")
    values[f"mean_client_{run.main}"] = of_lines.pop("mean_client")
    values |= of_lines
    minority = [shares[client] for client in minority_clients(run) if client in shares]
    values["minority_share"] = fmean(minority) if minority else None
    values["least_minority_share"] = min(minority, default=None)
    return values


def _against_clean(m: Measured, clean: Measured | None) -> dict[str, float | None]:
    if clean is None or m.run.attack == CLEAN:
        return {}
    values: dict[str, float | None] = {}
    for name in (m.run.main, "auprc"):
        before, after = clean[name], m[name]
        values[f"delta_{name}"] = None if before is None or after is None else before - after
    before, after = clean["accuracy"], m["accuracy"]
    values["robustness_index"] = after / before if before and after is not None else None
    return values


def _first_round_at(run: Run, target: float) -> int | None:
    return next((number for number, value in run.curve if value >= target), None)
