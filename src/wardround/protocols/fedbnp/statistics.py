"""The FedBNP document's statistics: paired t-tests on accuracy with Bonferroni's correction, and its detection figures.

FedBNP document, section III-G: accuracy improvement, attack success rate (one minus the recall of the detection),
detection precision and recall, rounds to a target accuracy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from wardround.analysis.measures import BASELINE, Measured
from wardround.analysis.papers import Section
from wardround.analysis.rendering import Cell, Table, number, signed
from wardround.analysis.runs import CLEAN, Run
from wardround.analysis.statistics import adjusted, paired

__all__ = ["RULES", "accuracy_table", "detection_table", "rounds_to_accuracy", "section"]

RULES = ("fedbnp", "fedbnp-sharp")
"""The document's rule in its two forms."""
TARGET = 0.9
"""Share of FedAvg's accuracy without attack that counts as reached; the document names no target."""
PAIRS = "seeds × folds"


def section(measured: Sequence[Measured]) -> Section | None:
    """The document's tables; None where its rule is not among the runs, or alone."""
    rule = next((rule for rule in RULES if any(_name(m.run) == rule for m in measured)), None)
    others = {_name(m.run) for m in measured} - {rule}
    if rule is None or not others:
        return None
    tables = [table for table in (accuracy_table(measured, rule), detection_table(measured)) if table.rows]
    return Section("The FedBNP document's statistics", tables=tuple(tables)) if tables else None


def accuracy_table(measured: Sequence[Measured], rule: str) -> Table:
    """Accuracy of the rule against each other one, paired by seed and fold: t-tests, corrected as one family."""
    groups = _over_folds(measured)
    of_rule: dict[tuple[str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for (setting, attack, _), members in groups.items():
        for m in members:
            if _name(m.run) == rule and (value := m["accuracy"]) is not None:
                of_rule[setting, attack][_pair(m.run)] = value
    tested = []
    for (setting, attack, method), members in groups.items():
        ours = of_rule[setting, attack]
        pairs = [
            (ours[_pair(m.run)], value)
            for m in members
            if _name(m.run) != rule and _pair(m.run) in ours and (value := m["accuracy"]) is not None
        ]
        test = paired([a for a, _ in pairs], [b for _, b in pairs])
        if test is not None:
            tested.append((setting, attack, method, pairs, test))
    p_values = [test.t_p for *_, test in tested if test.t_p is not None]
    corrected = iter(adjusted(p_values, "bonferroni"))
    rows: list[list[Cell]] = []
    for setting, attack, method, pairs, test in tested:
        bonferroni = None if test.t_p is None else next(corrected)
        rows.append(
            [setting, attack, method, test.n, fmean(a for a, _ in pairs), fmean(b for _, b in pairs),
             signed(100 * test.difference, 2), number(test.cohens_d, 2),
             None if test.t_p is None else f"{test.t_p:.3g}", number(bonferroni, 4)]
        )  # fmt: skip
    return Table(
        "fedbnp-accuracy",
        f"Accuracy of {rule} against the others, paired by seed and fold",
        ["setting", "attack", "other", PAIRS, rule, "other's", "improvement (points)", "Cohen's d", "paired t p",
         "Bonferroni"],
        rows,
        (f"Test accuracy after the last round. Two-sided paired t-tests; Bonferroni over all {len(p_values)} of them. "
         "The folds of a cross-validation count as one setting. No p where there is one pair, or where all differences "
         "are the same.",),
        words=3,
    )  # fmt: skip


def detection_table(measured: Sequence[Measured]) -> Table:
    """Detection precision and recall, attack success rate, and rounds to the target accuracy."""
    targets: dict[str, list[float]] = {}
    for m in measured:
        if m.run.attack == CLEAN and _name(m.run) == BASELINE and (value := m["accuracy"]) is not None:
            targets.setdefault(_setting(m.run), []).append(value)
    rows: list[list[Cell]] = []
    for (setting, attack, method), members in _over_folds(measured).items():
        recall = _mean([m["flag_tpr"] for m in members])
        reached = None
        if setting in targets:
            target = TARGET * fmean(targets[setting])
            found = [rounds_to_accuracy(m.run, target) for m in members]
            known = [value for value in found if value is not None]
            reached = f"{fmean(known):.1f} ({len(known)} of {len(found)})" if known else "never"
        rows.append(
            [setting, attack, method, len(members), _mean([m["flag_precision"] for m in members]), recall,
             None if recall is None else 1 - recall, reached]
        )  # fmt: skip
    return Table(
        "fedbnp-detection",
        "Detection, attack success rate, and rounds to the target accuracy",
        ["setting", "attack", "method", PAIRS, "precision", "recall", "ASR = 1 − recall", "rounds to target"],
        rows,
        (f"Over client-rounds, by flags; empty for rules that flag nobody. The target is {100 * TARGET:.0f} % of "
         "FedAvg's accuracy without attack in the same setting (the document names none); in brackets how many "
         "runs reach it.",),
        words=3,
    )  # fmt: skip


def rounds_to_accuracy(run: Run, target: float) -> int | None:
    """The first evaluated round whose test accuracy is at least the target; None: no round."""
    return next((number for number, accuracy in run.digest.accuracy if accuracy >= target), None)


def _over_folds(measured: Sequence[Measured]) -> dict[tuple[str, str, str], list[Measured]]:
    """Group runs by (setting, attack, method), clean ones first; the folds of a cross-validation are one setting."""
    groups: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for m in measured:
        groups[_setting(m.run), m.run.attack, m.run.method].append(m)
    return dict(
        sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != CLEAN, item[0][1], item[0][2]))
    )


def _setting(run: Run) -> str:
    """The setting without the fold."""
    return " · ".join(part for part in run.setting_parts if part != f"fold {_fold(run)}")


def _pair(run: Run) -> tuple[int, int]:
    """What a run of another rule must share to be compared with this one: seed and fold."""
    return run.seed, _fold(run)


def _fold(run: Run) -> int:
    return int(run.config["partition"].get("fold") or 0)


def _name(run: Run) -> str:
    return str(run.config["aggregator"]["name"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
