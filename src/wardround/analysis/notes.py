"""What must be known about a set of runs before its figures are believed: copies, versions, models that diverged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import wardround
from wardround.runs.identity import experiment_of

if TYPE_CHECKING:
    from wardround.analysis.runs import Run

__all__ = ["notes_on", "without_copies"]

NAMED = 3  # runs that a sentence names before it says how many more there are


def without_copies(runs: Sequence[Run]) -> list[Run]:
    """Every experiment once: copies of a folder, and the same configuration under another name, are one experiment.

    Of several, a finished run is kept before one that is not, then the first. What it stands for is in its `copies`.
    """
    same: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        same[experiment_of(run.config)].append(run)
    kept = []
    for group in same.values():
        first, *others = sorted(group, key=lambda run: not run.finished)
        first.copies = tuple(others)
        kept.append(first)
    return kept


def notes_on(runs: Sequence[Run]) -> list[str]:
    """Sentences about these runs, none where there is nothing to know."""
    notes = []
    copies = [(copy, run) for run in runs for copy in run.copies]
    if copies:
        pairs = [f"{copy.folder.path} = {run.folder.path}" for copy, run in copies]
        count = "1 run folder holds" if len(copies) == 1 else f"{len(copies)} run folders hold"
        notes.append(
            f"{count} the same experiment as another one, and each experiment counts once: {_some(pairs)}."
        )
    differing = [f"{copy.folder.path}" for copy, run in copies if _differ(copy, run)]
    if differing:
        notes.append(
            "The same configuration gave other results, so data, machine or version differ; only the first folder is "
            f"shown: {_some(differing)}."
        )
    versions = Counter(str(run.record.get("wardround")) for run in runs if "wardround" in run.record)
    if set(versions) - {wardround.__version__}:
        written = ", ".join(f"{version} ({count})" for version, count in sorted(versions.items()))
        notes.append(
            f"Written by other versions of wardround than this one ({wardround.__version__}): {written}; "
            "a rule may have changed between them."
        )
    diverged = [run for run in runs if run.summary is not None and run.summary.diverged]
    if diverged:
        named = [
            f"{run.folder.path.name} ({run.summary.reason})" for run in diverged if run.summary is not None
        ]
        count = "1 run diverged" if len(diverged) == 1 else f"{len(diverged)} runs diverged"
        notes.append(f"{count}; where there is no AUROC or C-index it counts as 0.5: {_some(named)}.")
    return notes


def _differ(copy: Run, run: Run) -> bool:
    """Did both end, with other figures?"""
    if copy.summary is None or run.summary is None or not (copy.finished and run.finished):
        return False
    return copy.summary.final != run.summary.final or copy.summary.detection != run.summary.detection


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
