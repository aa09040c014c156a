"""What a check of a table has found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.table_columns import ColumnSummary
from wardround.records import finite

__all__ = ["FileSummary", "Finding", "HospitalSummary", "Level", "TableCheck"]

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something that a person should know about the table."""

    level: Level
    text: str


@dataclass(frozen=True)
class FileSummary:
    """One file as it was read."""

    path: str
    rows: int
    separator: str
    decimal: str | None
    encoding: str

    @property
    def words(self) -> str:
        """How the file is written."""
        return Dialect(self.separator, self.decimal, self.encoding).words


@dataclass(frozen=True)
class HospitalSummary:
    """One hospital's rows."""

    name: str
    rows: int
    classes: tuple[int, ...]
    """Rows of each class."""
    train: int
    test: int


@dataclass(frozen=True)
class TableCheck:
    """Everything that the check has to say."""

    files: tuple[FileSummary, ...]
    rows: int
    columns: tuple[ColumnSummary, ...]
    label: str | None = None
    class_names: tuple[str, ...] = ()
    """Of two the last is the one to predict."""
    classes: tuple[int, ...] = ()
    """Rows of each class."""
    hospitals: tuple[HospitalSummary, ...] = ()
    splits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """train, validation, test → rows of each class."""
    seed: int = 0
    duplicates: int = 0
    """Rows that repeat an earlier one."""
    findings: tuple[Finding, ...] = ()
    time: str | None = None
    """The column of times of a survival task, whose events `label` has."""

    def of(self, level: Level) -> list[str]:
        """The findings of one level."""
        return [finding.text for finding in self.findings if finding.level == level]

    def plain(self) -> dict[str, Any]:
        """For programs."""
        values: dict[str, Any] = finite(asdict(self))
        return values
