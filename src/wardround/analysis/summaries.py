"""Tables of means over seeds: performance, detection, clients, cost; and one row per run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from wardround.analysis.clients import distance_from_the_rest, minority_clients, own_metrics
from wardround.analysis.measures import MEASURES, Measured
from wardround.analysis.patient_groups import gap_table, group_table
from wardround.analysis.rendering import Cell, Table, number, percent, plus_minus
from wardround.analysis.runs import CLEAN, quality_name
from wardround.analysis.statistics import Description, describe
from wardround.records import MAIN_METRICS

__all__ = ["every_run", "grouped", "minority_weights", "summary_tables"]

Group = dict[tuple[str, str, str], list[Measured]]


def grouped(measured: Iterable[Measured]) -> Group:
    """Group runs by (setting, attack, method), one entry per seed; clean ones first."""
    groups: Group = defaultdict(list)
    for m in measured:
        groups[m.run.setting, m.run.attack, m.run.method].append(m)
    return dict(
        sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != CLEAN, item[0][1], item[0][2]))
    )


def over_seeds(members: Sequence[Measured], name: str) -> Description | None:
    """Summarize a measure over the seeds that have it."""
    return describe([value for m in members if (value := m[name]) is not None])


def summary_tables(measured: Sequence[Measured]) -> list[Table]:
    """The tables that papers print: mean ± standard deviation over seeds."""
    groups = grouped(measured)
    return [
        table
        for table in (
            _performance(groups),
            _measures(
                groups, "calibration", "Threshold and calibration",
                names=("threshold", "sensitivity", "specificity", "brier", "ece"),
                notes=("Accuracy, F1, sensitivity and specificity count a patient as positive above the threshold, the "
                       "one with the highest F1 on validation rows. Brier score: mean squared error of the predicted "
                       "probabilities (several classes: summed over them). Calibration error: mean distance between "
                       "predicted probability and observed share over ten bins.",),
            ),
            gap_table(groups),
            group_table(groups),
            _measures(
                groups, "detection", "Detection, over client-rounds", attacked_only=True,
                names=("flag_tpr", "flag_fpr", "flag_precision", "flag_f1", "flag_latency", "flag_tpr_onset",
                       "flag_tpr_late", "low_tpr", "low_fpr", "low_latency", "fault_flag_tpr", "fault_low_tpr"),
                notes=("Flagged: the rule's own verdict. Suppressed: weight below a tenth of 1/N, for every rule "
                       "with weights. A latency is the mean over the seeds that have one, their number in brackets "
                       "where it is not all; 'never' where none has. Broken clients are counted apart, "
                       "neither as attackers nor as false alarms.",),
            ),
            _measures(
                groups, "false-alarms", "Honest clients without attack",
                clean_only=True, names=("flag_fpr", "flag_fpr_late", "low_fpr", "drift_flag_fpr", "drift_fpr"),
            ),
            _measures(
                groups, "clients", "Single clients",
                names=(
                    "minority_share", "least_minority_share", "worst_client_auroc", "mean_client_auroc",
                    "worst_client_c_index", "mean_client_c_index",
                ),
                notes=("The minority is the quarter of the honest clients whose class mix is farthest from that of all "
                       "clients (total variation). Weight as a multiple of an equal share. A client's own figures are "
                       "on the part of the test split that has its class mix.",),
            ),
            _measures(
                groups, "stability-and-cost", "Stability for honest clients, and cost",
                names=(
                    "score_variation", "threshold_variation", "aggregate_ms", "aggregate_vs_fedavg", "memory_mb",
                    "memory_vs_fedavg",
                ),
            ),
        )
        if table is not None
    ]  # fmt: skip


def _performance(groups: Group) -> Table | None:
    rows: list[list[Cell]] = []
    measure = quality_name(m.run for members in groups.values() for m in members)
    classes = [] if measure == MAIN_METRICS["c_index"] else ["auprc", "accuracy", "f1"]
    has_success = any(m["attack_success"] is not None for members in groups.values() for m in members)
    for (setting, attack, method), members in groups.items():
        auroc = describe([value for m in members if (value := m.main()) is not None])
        lost = describe([value for m in members if (value := m.main("delta_{}")) is not None])
        row: list[Cell] = [setting, attack, method, len(members), _mean_sd(auroc), _interval(auroc)]
        row += [_mean_sd(over_seeds(members, name)) for name in classes]
        row += [_mean_sd(lost), *(_mean_sd(over_seeds(members, "delta_auprc")) for _ in classes[:1])]
        row += [_rounds(members, "rounds_to_90")]
        row += [_mean_sd(over_seeds(members, "robustness_index")) for _ in classes[:1]]
        if has_success:
            row.append(percent(success.mean) if (success := over_seeds(members, "attack_success")) else None)
        rows.append(row)
    if not rows:
        return None
    names = ["setting", "attack", "method", "seeds", measure, "95 % bootstrap"]
    names += [MEASURES[name].heading for name in classes]
    names += [f"Δ{measure}", *(["ΔAUPRC"] if classes else []), "rounds to 90 %"]
    names += ["robustness index"] if classes else []
    most = max(len(members) for members in groups.values())
    notes = ["Test figures after the last round, mean ± standard deviation over seeds. Δ is clean minus attacked of "
             f"the same seed. Rounds to 90 % of the best {measure} of any clean run of the same setting and seed."
             + (" Robustness index: accuracy under attack over accuracy without." if classes else "")]  # fmt: skip
    broken = sum(bool(m["broken_rounds"]) for members in groups.values() for m in members)
    if broken:
        notes.append(
            f"In {broken} runs the model's output was not finite at times: its {measure} then counts as 0.5."
        )
    reasons = [m.run.why_no_auroc for members in groups.values() for m in members]
    for reason in dict.fromkeys(reason for reason in reasons if reason is not None):
        notes.append(f"No {measure} in {reasons.count(reason)} of {len(reasons)} runs: {reason}.")
    if 1 < most < 5:
        notes.append(
            f"A bootstrap over {most} seeds only knows the range between the lowest and the highest of them."
        )
    names += ["attack success"] if has_success else []
    return Table("performance", "Performance", names, rows, tuple(notes), words=3)


def _measures(
    groups: Group,
    key: str,
    title: str,
    names: Sequence[str],
    notes: Sequence[str] = (),
    attacked_only: bool = False,
    clean_only: bool = False,
) -> Table | None:
    """One column per measure that any run has, means over seeds."""
    chosen = {
        label: members
        for label, members in groups.items()
        if not (attacked_only and label[1] == CLEAN) and not (clean_only and label[1] != CLEAN)
    }
    used = [n for n in names if any(m[n] is not None for members in chosen.values() for m in members)]
    if not used:
        return None
    rows = [[*label, *(_cell(members, name) for name in used)] for label, members in chosen.items()]
    headings = [MEASURES[name].heading for name in used]
    return Table(key, title, ["setting", "attack", "method", *headings], rows, tuple(notes), words=3)


def _cell(members: Sequence[Measured], name: str) -> str | None:
    values, measure = over_seeds(members, name), MEASURES[name]
    if name.endswith("latency"):
        return _rounds(members, name)
    if values is None:
        return None
    if measure.percent:
        return percent(values.mean)
    return number(values.mean, 3 if abs(values.mean) < 10 else 1)


def _rounds(members: Sequence[Measured], name: str) -> str | None:
    """The mean over the seeds that reached it, and how many did."""
    values = over_seeds(members, name)
    if values is None:
        counted = {"flag_latency": "flag_tpr", "low_latency": "low_tpr", "rounds_to_90": "{}"}[
            name
        ]  # {}: AUROC or C-index
        return "never" if any(m.main(counted) is not None for m in members) else None
    return f"{values.mean:.1f}" + (f" ({values.n} of {len(members)})" if values.n < len(members) else "")


def _mean_sd(values: Description | None) -> str | None:
    return None if values is None else plus_minus(values.mean, values.sd)


def _interval(values: Description | None) -> str | None:
    return None if values is None or values.low is None else f"{number(values.low)} to {number(values.high)}"


def every_run(measured: Sequence[Measured]) -> Table:
    """All numbers of all runs, for further computation."""
    labels = ["run", "setting", "attack", "method", "seed"]
    rows: list[list[Cell]] = [
        [
            m.run.folder.path.name,
            m.run.setting,
            m.run.attack,
            m.run.method,
            m.run.seed,
            *(m[n] for n in MEASURES),
        ]
        for m in measured
    ]
    return Table("runs", "Every run", [*labels, *MEASURES], rows, words=5)


def minority_weights(measured: Sequence[Measured]) -> Table:
    """The weight and own AUROC (or C-index) of each honest client with a rare class mix."""
    rows: list[list[Cell]] = []
    for m in measured:
        held = m.run.record.get("clients") or {}
        far = distance_from_the_rest(held) if held else {}
        own = own_metrics(m.run, m.run.main)
        labels = (m.run.setting, m.run.attack, m.run.method, m.run.seed)
        rows += [
            [*labels, client, far[client], m.shares.get(client), own.get(client)]
            for client in minority_clients(m.run)
        ]
    measure = quality_name(m.run for m in measured)
    columns = [
        "setting",
        "attack",
        "method",
        "seed",
        "client",
        "distance",
        "share of weight",
        f"own {measure}",
    ]
    return Table("minority", "Honest clients with a rare class mix", columns, rows, words=5)
