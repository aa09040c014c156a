"""A table as it is in the files: columns of numbers and of words, before anything is fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wardround.datasets.patient_groups import PatientGroups, groups_of_rows

__all__ = ["Table"]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers (NaN where missing) and of words ("" where missing), and a target a row."""

    numeric: dict[str, np.ndarray]
    categorical: dict[str, np.ndarray]
    targets: np.ndarray
    units: Sequence[object] | np.ndarray
    """The patient of each row: rows of one patient never fall into two splits."""
    groups: Sequence[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    split_apart: bool = False
    """Split each group's rows by themselves, as the hospital would that has only these."""
    patient_groups: PatientGroups = field(default_factory=dict)
    """Attribute (sex, age, site) → the group of each row."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def columns(self) -> list[str]:
        """The names of all features, numbers first."""
        return [*self.numeric, *self.categorical]

    def select(self, rows: np.ndarray) -> Table:
        """Some rows of it."""
        groups = None if self.groups is None else [self.groups[row] for row in rows]
        return Table(
            {name: values[rows] for name, values in self.numeric.items()},
            {name: words[rows] for name, words in self.categorical.items()},
            self.targets[rows],
            np.asarray(self.units)[rows],
            groups,
            self.facts,
            self.split_apart,
            groups_of_rows(self.patient_groups, rows),
        )
