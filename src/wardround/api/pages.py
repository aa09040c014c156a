"""The report page about some run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wardround.analysis import load_runs
from wardround.protocols import papers
from wardround.report.contents import collect
from wardround.report.page import write_page

__all__ = ["write_report"]


def write_report(folders: Sequence[Path], out: Path, title: str) -> Path:
    """Write the page about these run folders, as `wardround report` does; returns where it is."""
    runs = load_runs(folders)
    return write_page(runs, out, title, collect(runs, papers()))
