"""Options that several commands share. Light to import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["CORES", "AsJson", "Jobs", "Out", "Resume", "RunPaths"]

CORES = os.cpu_count() or 1
Out = Annotated[Path, typer.Option("--out", help="Folder for the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="How many processes work in parallel.")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="A run folder of the same configuration with fewer rounds, to go on from."),
]
RunPaths = Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")]
