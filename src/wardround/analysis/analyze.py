"""The whole analysis of some runs: tables, statistics and verdicts, as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wardround.analysis.claims import Verdict
from wardround.analysis.comparisons import (
    PairedComparison,
    against_reference,
    comparison_table,
    power_table,
    ranking_table,
    reference_of,
)
from wardround.analysis.evidence import evidence_table
from wardround.analysis.measures import MEASURES, Measured, measure_all
from wardround.analysis.notes import notes_on
from wardround.analysis.papers import Paper, Section
from wardround.analysis.ranking import Ranking, rank_methods
from wardround.analysis.recommendation import Recommendation, recommendations
from wardround.analysis.rendering import Table, count
from wardround.analysis.robustness import robustness_tables
from wardround.analysis.runs import Run, quality_name
from wardround.analysis.summaries import every_run, minority_weights, summary_tables
from wardround.errors import ConfigError
from wardround.files import replace_file
from wardround.records import finite

__all__ = ["Analysis", "analyze", "write"]

AT_BEST = "Test figures are those of the round that was best on validation, not of the last round."


@dataclass(frozen=True)
class Analysis:
    """All results of an analysis."""

    measured: list[Measured]
    recommendations: list[Recommendation]
    """Which rule to use, one answer per setting."""
    unfinished: list[str]
    reference: str | None
    comparisons: list[PairedComparison]
    ranking: Ranking | None
    sections: list[Section]
    """What the papers add."""
    tables: list[Table]
    """For people and papers."""
    data: list[Table]
    """Too long for people: written as CSV only."""
    notes: list[str]
    """What must be known before the figures are believed: copies, other versions, models that diverged."""

    @property
    def verdicts(self) -> list[Verdict]:
        """On the hypotheses of all papers."""
        return [verdict for section in self.sections for verdict in section.verdicts]

    def markdown(self) -> str:
        """The results as one Markdown page: recommendation and evidence first, then verdicts and the tables."""
        parts = []
        for recommendation in self.recommendations:
            heading = f"### {recommendation.setting}\n\n" if len(self.recommendations) > 1 else ""
            parts.append(
                f"{heading}**{recommendation.headline}** {' '.join(recommendation.details)}".rstrip()
            )
            if (evidence := evidence_table(recommendation)) is not None:
                parts.append(evidence.markdown())
        parts.append(f"{count(len(self.measured), 'finished run')}.")
        if self.unfinished:
            parts[-1] += f" Not finished, and left out: {', '.join(self.unfinished)}."
        parts += self.notes
        for verdict in self.verdicts:
            parts.append(
                f"**{verdict.key}: {verdict.verdict}.** {verdict.statement}\n\n{_sentence(verdict.reason)}"
            )
        return "\n\n".join([*parts, *(table.markdown() for table in self.tables)])

    def plain(self) -> dict[str, Any]:
        """The results as plain JSON values, for programs."""
        values: dict[str, Any] = finite(
            {
                "runs": [
                    {"run": str(m.run.folder.path), "setting": m.run.setting, "attack": m.run.attack,
                     "method": m.run.method, "seed": m.run.seed, **{name: m[name] for name in MEASURES}}
                    for m in self.measured
                ],
                "recommendations": [asdict(recommendation) for recommendation in self.recommendations],
                "unfinished": self.unfinished,
                "notes": self.notes,
                "reference": self.reference,
                "comparisons": [asdict(c) for c in self.comparisons],
                "ranking": None if self.ranking is None else asdict(self.ranking),
                "hypotheses": [asdict(v) for v in self.verdicts],
            }
        )  # fmt: skip
        return values


def analyze(
    runs: Sequence[Run],
    reference: str | None = None,
    progress: Callable[[int], Any] = lambda done: None,
    papers: Sequence[Paper] = (),
) -> Analysis:
    """Measure the finished runs, compare and rank their methods, and add what the papers say of them.

    Args:
        runs: Finished and unfinished runs.
        reference: The method that the others are compared with; None: a paper's rule, if it is among them.
        progress: Called with the number of runs read so far.
        papers: Usually `wardround.protocols.papers()`.
    """
    measured = measure_all(runs, progress)
    if not measured:
        raise ConfigError("none of these runs is finished: there is nothing to analyse yet")
    rules = [paper.rule for paper in papers if paper.rule is not None]
    chosen = reference_of(measured, reference, rules)
    comparisons = against_reference(measured, chosen) if chosen else []
    ranking = rank_methods([m.run for m in measured if not m.run.is_oracle])
    robustness, in_every_setting = robustness_tables(measured)
    measure = quality_name(m.run for m in measured)
    sections = [section for paper in papers if (section := paper.section(measured)) is not None]
    tables = [table for section in sections for table in section.tables] + summary_tables(measured)
    tables += [] if robustness is None else [robustness]
    if comparisons and chosen:
        tables += [comparison_table(comparisons, chosen, measure), power_table()]
    if ranking is not None:
        tables.append(ranking_table(ranking, measure))
    tables += [table for section in sections for table in section.details]
    return Analysis(
        measured,
        recommendations(measured, {rule: text for paper in papers for rule, text in paper.cautions.items()}),
        [run.folder.path.name for run in runs if not run.finished],
        chosen,
        comparisons,
        ranking,
        sections,
        tables,
        [every_run(measured), minority_weights(measured), in_every_setting],
        [*([AT_BEST] if any(run.at == "best" for run in runs) else []), *notes_on(runs)],
    )


def write(analysis: Analysis, out: Path) -> list[Path]:
    """Write `analysis.md`, `analysis.json`, and each table as `.md`, `.csv` and `.tex`."""
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
            replace_file(out / name, text.encode())
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from None
    return [out / name for name in contents]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
