"""What a paper adds to the analysis of some runs. The papers themselves are in `wardround.protocols`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wardround.analysis.claims import Verdict
from wardround.analysis.measures import Measured
from wardround.analysis.rendering import Table

__all__ = ["Paper", "Section"]


@dataclass(frozen=True)
class Section:
    """One paper's part of an analysis."""

    title: str
    """Heading above the verdicts."""
    verdicts: tuple[Verdict, ...] = ()
    tables: tuple[Table, ...] = ()
    """The paper's own tables, which open the list of tables."""
    details: tuple[Table, ...] = ()
    """Tables that close the list."""


@dataclass(frozen=True)
class Paper:
    """A paper whose results the analysis shows where the runs have them."""

    name: str
    section: Callable[[Sequence[Measured]], Section | None]
    """The paper's part of the analysis of these runs; None where they do not concern it."""
    rule: str | None = None
    """The aggregator that the others are compared with, where it is among the runs and no other is asked for."""
    cautions: Mapping[str, str] = field(default_factory=dict)
    """By aggregator: what must be known before it is used, wherever these runs recommend it."""
