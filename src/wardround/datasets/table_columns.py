"""What is in one column of a table, and whether it gives the label away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from wardround.datasets.csv_files import MISSING
from wardround.datasets.dates import AmbiguousDates, days_of
from wardround.metrics import auroc

__all__ = ["ColumnSummary", "Role", "describe_column", "gives_away", "number_or_none"]

Role = Literal["feature", "category", "label", "time", "client", "patient", "dropped"]
Kind = Literal["number", "date", "words", "empty"]
NEARLY_ONE = 0.99
"""A column that ranks the classes as well as this by itself knows the answer."""
GAPS_NEARLY_ONE = 0.95
"""The same for a column that is filled for one class and empty for the other."""
FEW_OF_A_CLASS = 5
"""With fewer rows of a class, perfect ranking is luck."""
SHOWN_LEVELS = 5
_PATIENT = re.compile(r"(patient|subject|person|mrn|pid)([ _-]?(id|nr|no|number))?", re.IGNORECASE)


@dataclass(frozen=True)
class ColumnSummary:
    """One column."""

    name: str
    role: Role
    kind: Kind
    gaps: int
    """Cells without a value."""
    distinct: int
    lowest: float | None = None
    median: float | None = None
    highest: float | None = None
    """Of numbers; of dates in days since 1970."""
    levels: tuple[tuple[str, int], ...] = ()
    """The most frequent words and their counts."""
    first_word: tuple[str, int] | None = None
    """Of a column of words: a cell that is no number, and its row."""
    ambiguous: bool = False
    """Dates in which day and month cannot be told apart."""
    auroc: float | None = None
    """How well the column by itself ranks two classes; 0.5 is chance. None where that cannot be said."""

    @property
    def is_constant(self) -> bool:
        """Does every cell that has a value hold the same?"""
        return self.distinct == 1

    @property
    def looks_like_patients(self) -> bool:
        """Does the name say that it holds patients?"""
        return _PATIENT.fullmatch(self.name) is not None


def number_or_none(cell: str) -> float | None:
    """A cell as a number; None for a word."""
    try:
        return float(cell)
    except ValueError:
        return None


def describe_column(
    name: str, role: Role, cells: Sequence[str], positive: np.ndarray | None
) -> ColumnSummary:
    """Summarise a column.

    Args:
        name: Its name.
        role: What it is used for.
        cells: Its cells.
        positive: Which rows are of the class to predict, where there are two classes.
    """
    filled = [(row, cell.strip()) for row, cell in enumerate(cells) if cell.strip().lower() not in MISSING]
    gaps = len(cells) - len(filled)
    words = Counter(word for _, word in filled)
    if not filled:
        return ColumnSummary(name, role, "empty", gaps, 0)
    levels = tuple(words.most_common(SHOWN_LEVELS))
    values = [number_or_none(word) for _, word in filled]
    kind: Kind = "number"
    first_word = next(
        ((word, row) for (row, word), value in zip(filled, values, strict=True) if value is None), None
    )
    ambiguous = False
    if first_word is not None:
        try:
            days = days_of(word for _, word in filled)
        except AmbiguousDates:
            days, ambiguous = None, True
        if days is None:
            kind = "date" if ambiguous else "words"
            return ColumnSummary(
                name, role, kind, gaps, len(words), levels=levels, first_word=first_word, ambiguous=ambiguous
            )
        kind, values = "date", list(days)
    known = np.array(values, dtype=float)
    finite = known[np.isfinite(known)]
    rows = np.array([row for row, _ in filled])
    return ColumnSummary(
        name,
        role,
        kind,
        gaps,
        len(words),
        float(finite.min()) if len(finite) else None,
        float(np.median(finite)) if len(finite) else None,
        float(finite.max()) if len(finite) else None,
        levels,
        auroc=_auroc(known, rows, positive),
    )


def _auroc(values: np.ndarray, rows: np.ndarray, positive: np.ndarray | None) -> float | None:
    if positive is None:
        return None
    truth = positive[rows]
    if min(truth.sum(), (~truth).sum()) < FEW_OF_A_CLASS:
        return None
    area = float(auroc(torch.from_numpy(values), torch.from_numpy(truth)))
    return max(area, 1 - area)


def gives_away(column: ColumnSummary, cells: Sequence[str], targets: np.ndarray) -> str | None:
    """How a column gives the label away; None where it does not.

    By its values (they rank two classes almost without a mistake), by its words (each occurs with one class only),
    or by its gaps (it is filled for one class alone, as a date of death is).

    Args:
        column: The column.
        cells: Its cells.
        targets: The class of each row.
    """
    counts = np.bincount(targets)
    if (counts[counts > 0] < FEW_OF_A_CLASS).any() or (counts > 0).sum() < 2:
        return None
    if column.auroc is not None and column.auroc >= NEARLY_ONE:
        return f"by itself it ranks the classes with an AUROC of {column.auroc:.3f}"
    empty = np.array([cell.strip().lower() in MISSING for cell in cells])
    if 0 < column.gaps < len(cells) and (counts > 0).sum() == 2:
        low, high = np.flatnonzero(counts)
        area = 0.5 + abs(empty[targets == high].mean() - empty[targets == low].mean()) / 2
        if area >= GAPS_NEARLY_ONE:
            return f"whether it is filled tells the classes apart (AUROC {area:.3f})"
    # An identifier has one class a value, too: only values that recur say something about the class.
    if 2 <= column.distinct <= max(2, len(cells) // 10):
        seen: dict[str, set[int]] = {}
        for cell, target in zip(cells, targets.tolist(), strict=True):
            if cell.strip().lower() not in MISSING:
                seen.setdefault(cell.strip(), set()).add(target)
        if all(len(classes) == 1 for classes in seen.values()):
            return f"each of its {column.distinct} values occurs with one class only"
    return None
