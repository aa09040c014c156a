"""The whole analysis of some runs: tables, statistics, verdicts; written as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wardround.analysis.comparisons import (
    PairedComparison,
    against_reference,
    comparison_table,
    power_table,
    ranking_table,
    reference_of,
)
from wardround.analysis.hypotheses import Verdict, judge
from wardround.analysis.layout import Cell, Table, number
from wardround.analysis.measures import MEASURES, Measured, measure_all
from wardround.analysis.published import dos_tables
from wardround.analysis.ranking import Ranking, rank_methods
from wardround.analysis.runs import Run
from wardround.analysis.summaries import every_run, minority_weights, summary_tables
from wardround.errors import ConfigError

__all__ = ["Analysis", "analyze", "write"]


@dataclass(frozen=True)
class Analysis:
    """What some runs say."""

    measured: list[Measured]
    unfinished: list[str]
    reference: str | None
    comparisons: list[PairedComparison]
    ranking: Ranking | None
    verdicts: list[Verdict]
    tables: list[Table]
    """For people and papers."""
    data: list[Table]
    """Too long for people: written as CSV only."""

    def markdown(self) -> str:
        """Verdicts first, then the tables."""
        runs = len(self.measured)
        parts = [f"{runs} finished {'run' if runs == 1 else 'runs'}."]
        if self.unfinished:
            parts[0] += f" Not finished, and left out: {', '.join(self.unfinished)}."
        for verdict in self.verdicts:
            parts.append(
                f"**{verdict.key}: {verdict.verdict}.** {verdict.statement}\n\n{_sentence(verdict.reason)}"
            )
        return "\n\n".join([*parts, *(table.markdown() for table in self.tables)])

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return _finite(
            {
                "runs": [
                    {"run": str(m.run.folder.path), "setting": m.run.setting, "attack": m.run.attack,
                     "method": m.run.method, "seed": m.run.seed, **{name: m[name] for name in MEASURES}}
                    for m in self.measured
                ],
                "unfinished": self.unfinished,
                "reference": self.reference,
                "comparisons": [asdict(c) for c in self.comparisons],
                "ranking": None if self.ranking is None else asdict(self.ranking),
                "hypotheses": [asdict(v) for v in self.verdicts],
            }
        )  # fmt: skip


def analyze(
    runs: Sequence[Run], reference: str | None = None, progress: Callable[[int], Any] = lambda done: None
) -> Analysis:
    """Measure, compare, rank and judge."""
    measured = measure_all(runs, progress)
    if not measured:
        raise ConfigError("none of these runs is finished: there is nothing to analyse yet")
    chosen = reference_of(measured, reference)
    comparisons = against_reference(measured, chosen) if chosen else []
    ranking = rank_methods([m.run for m in measured])
    verdicts = judge(measured)
    tables = [*dos_tables(measured), *summary_tables(measured)]
    if comparisons and chosen:
        tables += [comparison_table(comparisons, chosen), power_table()]
    if ranking is not None:
        tables.append(ranking_table(ranking))
    tables += [_claims_table(verdict) for verdict in verdicts if verdict.claims]
    return Analysis(
        measured,
        [run.folder.path.name for run in runs if not run.finished],
        chosen,
        comparisons,
        ranking,
        verdicts,
        tables,
        [every_run(measured), minority_weights(measured)],
    )


def _claims_table(verdict: Verdict) -> Table:
    rows: list[list[Cell]] = []
    for claim in verdict.claims:
        test = claim.test
        rows.append(
            [claim.setting, claim.attack, f"{MEASURES[claim.measure].heading} {'≥' if claim.margin else 'better than'} "
             f"{claim.other}", number(claim.ours), number(claim.theirs), f"{test.above}/{test.below}", test.p_in_words,
             number(claim.holm_p, 4) if test.can_decide else None,
             None if claim.holm_t_p is None else f"{claim.holm_t_p:.3g}", claim.outcome]
        )  # fmt: skip
    return Table(
        f"claims-{verdict.key.lower()}",
        f"{verdict.key}, claim by claim: {verdict.verdict}",
        ["setting", "attack", "claim", "CAAC-FL", "other", "seeds for/against", "Wilcoxon p", "Holm", "t p, Holm",
         "outcome"],
        rows,
        (
            "≥ allows for a difference of 0.01. Suppressed: by weights below a tenth of 1/N, which all rules have; "
            "flagged: by CAAC-FL's own verdict. A latency that never ended counts as if it ended after the last "
            "round. Rules that suppress more than half of the honest clients take no part in FNR and latency.",
        ),
        words=3,
    )  # fmt: skip


def write(analysis: Analysis, out: Path) -> list[Path]:
    """`analysis.md`, `analysis.json`, and each table as `.md`, `.csv` and `.tex`."""
    contents = {
        "analysis.md": analysis.markdown(),
        "analysis.json": json.dumps(analysis.plain(), indent=1) + "\n",
    }
    for table in analysis.tables:
        contents |= {
            f"{table.key}.md": table.markdown(),
            f"{table.key}.csv": table.csv(),
            f"{table.key}.tex": table.latex(),
        }
    contents |= {f"{table.key}.csv": table.csv() for table in analysis.data}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            temporary = out / f"{name}.tmp"
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, out / name)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from None
    return [out / name for name in contents]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
