"""One method compared with each other one, paired by seed, with what that number of seeds can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wardround.analysis.measures import BASELINE, Measured
from wardround.analysis.ranking import Ranking
from wardround.analysis.rendering import Cell, Table, number, signed
from wardround.analysis.statistics import Paired, adjusted, paired, seeds_needed
from wardround.analysis.summaries import grouped
from wardround.errors import ConfigError, did_you_mean

__all__ = [
    "PairedComparison",
    "against_reference",
    "comparison_table",
    "power_table",
    "ranking_table",
    "reference_of",
]

MEDIUM = 0.5  # the effect (Cohen's d) that the sample-size justification of FedBNP asks for


@dataclass(frozen=True)
class PairedComparison:
    """The reference against one other method in one setting under one attack, on AUROC or C-index."""

    setting: str
    attack: str
    other: str
    test: Paired
    holm_p: float
    bonferroni_p: float


def reference_of(measured: Sequence[Measured], wanted: str | None, rules: Sequence[str] = ()) -> str | None:
    """The method that the others are compared with: the one asked for, else the first of `rules` that ran.

    Where none of them ran, FedAvg is the reference, and without FedAvg the first method by name.
    """
    methods = sorted({m.run.method for m in measured})
    if wanted is not None:
        if wanted not in methods:
            raise ConfigError(f"--reference: no run of method '{wanted}'; {did_you_mean(wanted, methods)}")
        return wanted
    for rule in (*rules, BASELINE):
        matching = [method for method in methods if method == rule or method.startswith(f"{rule} (")]
        if matching:
            return matching[0]
    return methods[0] if methods else None


def against_reference(measured: Sequence[Measured], reference: str) -> list[PairedComparison]:
    """Compare every other method with the reference; p-values are corrected as one family."""
    groups = grouped(measured)
    tested: list[tuple[str, str, str, Paired]] = []
    for (setting, attack, method), members in groups.items():
        ours = {m.run.seed: m.main() for m in groups.get((setting, attack, reference), ())}
        if method == reference or not ours:
            continue
        pairs = [
            (a, b) for m in members if (a := ours.get(m.run.seed)) is not None and (b := m.main()) is not None
        ]
        if (test := paired([a for a, _ in pairs], [b for _, b in pairs])) is not None:
            tested.append((setting, attack, method, test))
    p_values = [test.wilcoxon_p for *_, test in tested]
    return [
        PairedComparison(*entry, holm, bonferroni)
        for entry, holm, bonferroni in zip(
            tested, adjusted(p_values), adjusted(p_values, "bonferroni"), strict=True
        )
    ]


def comparison_table(
    comparisons: Sequence[PairedComparison], reference: str, measure: str = "AUROC"
) -> Table:
    """The comparisons as a table; where the seeds cannot decide, it says so in place of a p-value."""
    rows: list[list[Cell]] = []
    for c in comparisons:
        test = c.test
        interval = None
        if test.low is not None and test.high is not None:
            interval = f"{signed(test.low)} to {signed(test.high)}"
        rows.append(
            [c.setting, c.attack, c.other, test.n, signed(test.difference), interval, number(test.cohens_d, 2),
             test.p_in_words, number(c.holm_p, 4) if test.can_decide else None,
             number(c.bonferroni_p, 4) if test.can_decide else None,
             None if test.t_p is None else f"{test.t_p:.3g}", _needed(test)]
        )  # fmt: skip
    return Table(
        "comparisons",
        f"{measure} of {reference} minus that of the others, paired by seed",
        ["setting", "attack", "other", "seeds", "difference", "95 % (t)", "Cohen's d", "Wilcoxon p", "Holm",
         "Bonferroni", "paired t p", "seeds for 80 %"],
        rows,
        ("Two-sided. Cohen's d is the mean difference over the standard deviation of the differences; the last column "
         "is how many seeds a paired t-test would need to find a d of that size with 80 % power.",),
        words=3,
    )  # fmt: skip


def _needed(test: Paired) -> str | None:
    if not test.cohens_d:
        return None
    return "> 1000" if (seeds := seeds_needed(test.cohens_d, most=1000)) is None else str(seeds)


def power_table() -> Table:
    """How many seeds a study needs to find effects of several sizes."""
    effects = (0.2, MEDIUM, 0.8, 1.0, 2.0)
    return Table(
        "power",
        "Seeds that a paired t-test needs (two-sided 5 %, 80 % power)",
        ["Cohen's d", "seeds"],
        [[f"{effect:g}", seeds_needed(effect)] for effect in effects],
    )


def ranking_table(ranking: Ranking, measure: str = "AUROC") -> Table:
    """Mean ranks with Friedman's test, or why there is none."""
    if ranking.why_not:
        note = f"{ranking.blocks} blocks (setting, attack and seed). No test: {ranking.why_not}."
    else:
        same = "; ".join(" – ".join(clique) for clique in ranking.cliques) or "none"
        p = "not defined" if ranking.friedman_p is None else f"{ranking.friedman_p:.3g}"
        note = (
            f"{ranking.blocks} blocks (setting, attack and seed; those of one seed are not independent). Friedman p = "
            f"{p}; Nemenyi's critical difference at 5 % is {ranking.critical_difference:.2f}; "
            f"no significant difference: {same}."
        )
    rows: list[list[Cell]] = [
        [method, rank] for method, rank in zip(ranking.methods, ranking.mean_ranks, strict=True)
    ]
    return Table("ranking", f"Mean ranks by {measure} (1 is best)", ["method", "mean rank"], rows, (note,))
