"""`wardround analyze` and `wardround report`. Light to import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli.options import CORES, AsJson, RunPaths

if TYPE_CHECKING:
    from wardround.analysis import Run

__all__ = ["analyze", "mount", "report", "write_report"]


BestRound = Annotated[
    bool,
    typer.Option("--best", help="Figures of the round that was best on validation, not of the last one."),
]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (analyze, report):
        app.command()(command)


def analyze(
    paths: RunPaths,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the tables as Markdown, CSV and LaTeX.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The method that the others are compared with; by default a paper's rule."),
    ] = None,
    best: BestRound = False,
    as_json: AsJson = False,
) -> None:
    """Print or write metrics, statistics and hypotheses of some runs as tables."""
    from wardround.analysis import analyze as analyze_runs
    from wardround.analysis import load_runs, write
    from wardround.cli.console import progress
    from wardround.protocols import papers

    runs = load_runs(paths, at="best" if best else "final", jobs=CORES)
    with progress("reading runs", len(runs)) as advance:
        analysis = analyze_runs(runs, reference, advance, papers())
    if out is not None:
        write(analysis, out)
    if as_json:
        print(json.dumps(analysis.plain()))
    elif out is None:
        print(analysis.markdown())
    else:
        for recommendation in analysis.recommendations:
            where = f"{recommendation.setting}: " if len(analysis.recommendations) > 1 else ""
            print(f"{where}{recommendation.text}")
        for verdict in analysis.verdicts:
            print(f"{verdict.key}: {verdict.verdict}: {verdict.reason}")
        print(f"tables: {out}")


def report(
    paths: RunPaths,
    out: Annotated[Path, typer.Option("--out", help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title")] = "wardround report",
    figures: Annotated[
        Path | None, typer.Option(help="Also draw every figure as PNG, SVG and PDF into this folder.")
    ] = None,
    every_run: Annotated[
        bool, typer.Option("--all", help="Figures of clients for every run, not for one seed of each kind.")
    ] = False,
    best: BestRound = False,
) -> None:
    """Write one self-contained HTML page about some runs: which rule to use, the evidence, and the rest."""
    from wardround.analysis import load_runs

    runs = load_runs(paths, at="best" if best else "final", jobs=CORES)
    write_report(runs, out, title, figures, every_run)


def write_report(
    runs: Sequence[Run], out: Path, title: str, figures: Path | None = None, every_run: bool = False
) -> None:
    """Write the page about these runs, and their figures as files where a folder is given."""
    from wardround.cli.console import progress
    from wardround.protocols import papers
    from wardround.report.contents import collect
    from wardround.report.page import write_page
    from wardround.report.paper import write_figures

    contents = collect(runs, papers(), every_run)
    print(f"report: {write_page(runs, out, title, contents)}")
    if contents.left_out:
        print(
            f"figures of clients: {contents.left_out} of {len(runs)} runs are left out; --all shows every run"
        )
    if figures is None:
        return
    with progress("figures", len(contents.all_figures)) as advance:
        for number, figure in enumerate(contents.all_figures, start=1):
            write_figures([figure], figures)
            advance(number)
    print(f"figures: {figures}")
