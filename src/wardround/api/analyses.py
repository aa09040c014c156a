"""`wardround.analyze`: what several runs show, from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wardround.analysis import Analysis, load_runs
from wardround.analysis import analyze as analyze_runs
from wardround.analysis import write as write_tables
from wardround.analysis.claims import Verdict
from wardround.analysis.rendering import Table
from wardround.analysis.runs import At
from wardround.api.pages import write_report
from wardround.api.simulations import Result
from wardround.api.tables import Records
from wardround.errors import ConfigError
from wardround.protocols import papers

__all__ = ["RunsAnalysis", "analyze"]

Source = Result | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class RunsAnalysis:
    """What some runs show: tables, paired comparisons and verdicts."""

    folders: Sequence[Path]
    analysis: Analysis

    @property
    def runs(self) -> Records[Mapping[str, Any]]:
        """One row per finished run: setting, attack, method, seed, and every measure."""
        return Records(self.analysis.plain()["runs"], dict)

    @property
    def comparisons(self) -> Records[Mapping[str, Any]]:
        """One row per setting, attack and method: the difference from the reference, paired by seed."""
        return Records([_flat(line) for line in self.analysis.plain()["comparisons"]], dict)

    @property
    def verdicts(self) -> list[Verdict]:
        """On the hypotheses of the papers whose rules are among the runs."""
        return self.analysis.verdicts

    @property
    def tables(self) -> list[Table]:
        """The tables of `markdown()`, each with `.markdown()`, `.csv()` and `.latex()`."""
        return self.analysis.tables

    def markdown(self) -> str:
        """Everything as one Markdown page."""
        return self.analysis.markdown()

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every table as Markdown, CSV and LaTeX."""
        return write_tables(self.analysis, Path(folder))

    def report(self, path: str | os.PathLike[str] = "report.html", title: str = "wardround report") -> Path:
        """Write one self-contained HTML page about these runs."""
        return write_report(self.folders, Path(path), title)

    def __repr__(self) -> str:
        return repr(self.runs)

    def _repr_markdown_(self) -> str:
        return self.markdown()


def analyze(
    *sources: Source | Iterable[Source], reference: str | None = None, at: At = "final"
) -> RunsAnalysis:
    """Compare runs: results of `simulate`, run folders, or folders of run folders; single or in lists.

    Args:
        sources: The runs.
        reference: The method that the others are compared with; None: a paper's rule, if it is among them.
        at: Metrics of the last round (`final`), or of the one that was `best` on validation.
    """
    folders = list(_folders(sources))
    if not folders:
        raise ConfigError("analyze: give results of simulate, or run folders")
    return RunsAnalysis(folders, analyze_runs(load_runs(folders, at), reference, papers=papers()))


def _folders(sources: Iterable[Source | Iterable[Source]]) -> Iterable[Path]:
    for source in sources:
        if isinstance(source, Result):
            yield source.path
        elif isinstance(source, str | os.PathLike):
            yield Path(source)
        elif isinstance(source, Iterable):
            yield from _folders(source)
        else:
            raise ConfigError(
                f"analyze: expected results of simulate or run folders, got {type(source).__name__}"
            )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested results beside the others."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat
