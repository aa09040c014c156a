"""What the programs that write docs/results/ share: where pages, tables and pictures go, and how long runs took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from wardround.analysis.rendering import Table
from wardround.analysis.runs import Run

DOCS = Path(__file__).parents[1]
PAGES = DOCS / "results"
TABLES = PAGES / "tables"
FIGURES = DOCS / "figures"


def write_page(name: str, text: str) -> Path:
    """Write docs/results/NAME.md."""
    return _write(PAGES / f"{name}.md", text)


def attach_text(name: str, title: str, text: str) -> str:
    """Write an attachment in Markdown, and return the link that a page has to it."""
    _write(TABLES / f"{name}.md", f"# {title}\n\n{text}")
    return f"[{title}](tables/{name}.md)"


def attach_table(prefix: str, table: Table) -> str:
    """Write a table with all digits as CSV, and return the link that a page has to it."""
    _write(TABLES / f"{prefix}-{table.key}.csv", table.csv())
    return f"[{table.title}](tables/{prefix}-{table.key}.csv)"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table of ready cells; the first `words` columns are aligned left."""
    rule = [":---" if column < words else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *rows])


def effort(runs: Sequence[Run]) -> str:
    """How many runs and rounds there are, and the hours they took one after the other."""
    seconds = sum(sum(record.seconds.values()) for run in runs for record in run.rounds)
    rounds = sum(len(run.rounds) for run in runs)
    return f"{len(runs):,} runs, {rounds:,} rounds, {seconds / 3600:.1f} hours of one core"


def versions(runs: Sequence[Run]) -> str:
    """The versions of wardround, torch and Python that the runs name."""
    named = {
        f"wardround {run.record.get('wardround')}, torch {run.record.get('torch')}, "
        f"Python {run.record.get('python')}"
        for run in runs
    }
    return "; ".join(sorted(named))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
    return path
