"""What each rule loses, whom it suppresses, and where it does harm: the same measures for every rule.

Losses are against references outside the rule, paired by seed:

- the **oracle** (`aggregator: oracle`), FedAvg over the clients that are not attackers: the price of not knowing who
  attacks. Without an attack it is FedAvg, whose runs then stand in for it;
- the **best clean** rule: of all rules in these runs the one with the highest mean AUROC without attack in the setting.

A rule does **harm** in a setting when it is worse than no defence, FedAvg under the same attack with the same seeds, by
more than `MARGIN` on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from wardround.analysis.measures import BASELINE, Measured
from wardround.analysis.rendering import Cell, Table
from wardround.analysis.runs import CLEAN, quality_name
from wardround.analysis.statistics import Paired, paired

__all__ = ["MARGIN", "Standing", "robustness_tables", "standings"]

MARGIN = 0.005
"""AUROC: smaller differences from FedAvg are not called harm."""
MEDIAN = "median"
SUPPRESSED = ("suppressed_clients", "suppressed_patients", "suppressed_outcome")

Values = Mapping[int, float]
"""AUROC by seed."""


@dataclass(frozen=True)
class Standing:
    """One rule in one setting under one attack, beside its references."""

    setting: str
    attack: str
    method: str
    auroc: Values
    against_oracle: Paired | None
    """The oracle's AUROC minus the rule's, by seed."""
    against_clean: Paired | None
    """The best clean rule's AUROC minus the rule's, by seed."""
    against_fedavg: Paired | None
    """FedAvg's AUROC minus the rule's, by seed."""
    against_median: Paired | None
    oracle_loss: Values
    """The oracle's AUROC minus the rule's, one per seed."""
    figures: Mapping[str, float | None]
    """Mean over seeds of false alarms and suppressed shares."""

    @property
    def harms(self) -> bool | None:
        """Worse than no defence? None where FedAvg did not run here."""
        return None if self.against_fedavg is None else self.against_fedavg.difference > MARGIN

    @property
    def below_both(self) -> bool | None:
        """Worse than both FedAvg and the median? None where one of them did not run here."""
        if self.against_fedavg is None or self.against_median is None:
            return None
        return min(self.against_fedavg.difference, self.against_median.difference) > MARGIN


def standings(measured: Sequence[Measured]) -> list[Standing]:
    """Every rule in every setting and under every attack, in the order of their names; the oracle has none."""
    groups: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    oracle: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    plain: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for m in measured:
        if (value := m.main()) is None:
            continue
        if m.run.is_oracle:
            oracle[m.run.setting, m.run.attack][m.run.seed] = value
            continue
        groups[m.run.setting, m.run.attack, m.run.method].append(m)
        if (name := m.run.config["aggregator"]["name"]) in (BASELINE, MEDIAN):
            # of several variants the plain one: it comes first by name
            plain[m.run.setting, m.run.attack, name].setdefault(m.run.seed, value)
    best = _best_clean(groups)
    found = []
    for (setting, attack, method), members in sorted(groups.items(), key=_order):
        own = {m.run.seed: value for m in members if (value := m.main()) is not None}
        reference = oracle.get((setting, attack)) or (
            plain[setting, CLEAN, BASELINE] if attack == CLEAN else {}
        )
        found.append(
            Standing(
                setting,
                attack,
                method,
                own,
                _loss(reference, own),
                _loss(best.get(setting, {}), own),
                _loss(plain[setting, attack, BASELINE], own),
                _loss(plain[setting, attack, MEDIAN], own),
                {seed: reference[seed] - value for seed, value in own.items() if seed in reference},
                {name: _mean([m[name] for m in members]) for name in ("flag_fpr", *SUPPRESSED)},
            )
        )
    return found


def _order(item: tuple[tuple[str, str, str], object]) -> tuple[str, bool, str, str]:
    setting, attack, method = item[0]
    return setting, attack != CLEAN, attack, method


def _best_clean(groups: Mapping[tuple[str, str, str], Sequence[Measured]]) -> dict[str, dict[int, float]]:
    """Setting → AUROC by seed of the rule that is best without attack, mean over seeds."""
    best: dict[str, dict[int, float]] = {}
    for (setting, attack, _), members in sorted(groups.items()):
        values = {m.run.seed: value for m in members if (value := m.main()) is not None}
        if attack == CLEAN and (
            setting not in best or fmean(values.values()) > fmean(best[setting].values())
        ):
            best[setting] = values
    return best


def _loss(reference: Values, own: Values) -> Paired | None:
    seeds = sorted(reference.keys() & own.keys())
    return paired([reference[seed] for seed in seeds], [own[seed] for seed in seeds])


def robustness_tables(measured: Sequence[Measured]) -> tuple[Table | None, Table]:
    """One row per rule for people (None where nobody attacks), and one row per rule, setting and attack as data."""
    found = standings(measured)
    measure = quality_name(m.run for m in measured)
    return _per_rule(found, measure), _per_setting(found, measure)


def _per_rule(found: Sequence[Standing], measure: str) -> Table | None:
    if all(one.attack == CLEAN for one in found):
        return None
    rules: dict[str, list[Standing]] = defaultdict(list)
    for one in found:
        rules[one.method].append(one)
    rows = [_row(method, own) for method, own in rules.items()]
    rows.sort(key=lambda row: (row[4] is None, row[4] if isinstance(row[4], float) else 0.0, str(row[0])))
    columns = [
        "method", "settings", "seeds", "clean loss", "mean loss", "sd", "low", "high", "worst loss", "worst in",
        "mean loss (best clean)", "worst loss (best clean)", "harm", "below both", "FPR", "suppressed clients",
        "suppressed patients", "suppressed of an outcome",
    ]  # fmt: skip
    notes = [
        f"Loss: {measure} of the oracle, FedAvg that is told who attacks, minus the rule's, same setting, attack and "
        "seed; mean and sd over the attacked settings, low to high a 95 % interval (t) over the seeds' means. 'Best "
        f"clean': minus the {measure} without attack of the best rule of the setting. Harm: share of settings, clean "
        f"ones included, in which the rule is worse than FedAvg by more than {MARGIN:g} on average over seeds; below "
        "both: worse than "
        "FedAvg and the median. FPR: honest client-rounds flagged. Suppressed: honest client-rounds, their patients, "
        "and the patients of the outcome that suffers most, with a weight below a tenth of what FedAvg would give; "
        "means over all settings. Rules compare only where they have the same settings.",
    ]
    if all(one.against_oracle is None for one in found if one.attack != CLEAN):
        notes.append("No loss against the oracle: add aggregator 'oracle' to the matrix.")
    return Table(
        "robustness", "Robustness: losses, harm and suppression by rule", columns, rows, tuple(notes)
    )


def _row(method: str, own: Sequence[Standing]) -> list[Cell]:
    attacked = [one for one in own if one.attack != CLEAN]
    losses = [(one.against_oracle.difference, one) for one in attacked if one.against_oracle is not None]
    from_clean = [one.against_clean.difference for one in attacked if one.against_clean is not None]
    clean = [one.against_clean.difference for one in own if one.attack == CLEAN and one.against_clean]
    worst = max(losses, key=lambda pair: pair[0], default=None)
    low, high = _interval_over_seeds([one.oracle_loss for _, one in losses])
    return [
        method,
        len(own),
        max(len(one.auroc) for one in own),
        _mean(clean),
        _mean([loss for loss, _ in losses]),
        stdev([loss for loss, _ in losses]) if len(losses) > 1 else None,
        low,
        high,
        None if worst is None else worst[0],
        None if worst is None else f"{worst[1].setting}, {worst[1].attack}",
        _mean(from_clean),
        max(from_clean, default=None),
        _mean([float(one.harms) for one in own if one.harms is not None]),
        _mean([float(one.below_both) for one in own if one.below_both is not None]),
        *(_mean([one.figures[name] for one in own]) for name in ("flag_fpr", *SUPPRESSED)),
    ]


def _interval_over_seeds(losses: Sequence[Values]) -> tuple[float | None, float | None]:
    """95 % interval of the mean loss, over the seeds that every setting has."""
    seeds = sorted(set.intersection(*(set(values) for values in losses))) if losses else []
    means = [fmean(values[seed] for values in losses) for seed in seeds]
    test = paired(means, [0.0] * len(means))
    return (None, None) if test is None else (test.low, test.high)


def _per_setting(found: Sequence[Standing], measure: str) -> Table:
    columns = ["setting", "attack", "method", "seeds", measure, f"{measure} sd"]
    references = ("oracle", "best clean", "FedAvg", "median")
    columns += [
        f"{part} {name}" for name in references for part in ("loss against", "low against", "high against")
    ]
    columns += ["harm", "below both", "FPR", *(name.replace("_", " ") for name in SUPPRESSED)]
    rows: list[list[Cell]] = []
    for one in found:
        values = list(one.auroc.values())
        row: list[Cell] = [one.setting, one.attack, one.method, len(values), fmean(values)]
        row.append(stdev(values) if len(values) > 1 else None)
        for test in (one.against_oracle, one.against_clean, one.against_fedavg, one.against_median):
            row += [None] * 3 if test is None else [test.difference, test.low, test.high]
        row += [None if known is None else int(known) for known in (one.harms, one.below_both)]
        rows.append([*row, *one.figures.values()])
    return Table("robustness-settings", "Robustness in every setting", columns, rows, words=3)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
