"""The contract of a pre-aggregation: a round's updates in, other updates out. One per file, registered by name.

Most of them make linear combinations of the rows (`Mixer`): they say with which coefficients, and the values are only
computed for a rule that looks at coordinates. The others change rows one by one (`RowStep`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.measurements import Measurements
from wardround.errors import ParameterError
from wardround.registry import Configurable, Parameters, Registry
from wardround.updates import Updates

__all__ = [
    "ByzantineMixer",
    "Mixer",
    "Mixture",
    "Parameters",
    "PreAggregator",
    "PreContext",
    "RowStep",
    "register",
    "registry",
]


@dataclass(frozen=True)
class PreContext:
    """What a pre-aggregation may know beside the updates."""

    round: int
    clients: int
    """How many clients sent something, malformed rows included."""
    f: int
    """Byzantine clients that the rule behind is built for; ⌊0.2·N⌋ where it has no such number."""


@dataclass(frozen=True)
class Mixture:
    """What a `Mixer` makes of N rows."""

    coefficients: Tensor
    """N′ × N, float64: every new row as a combination of the old ones."""
    shares: Tensor
    """N′ × N, float64, lines that sum to 1: to which of the N rows a new row belongs. Weights of the new rows are
    traced back to the old ones by it."""
    columns: dict[str, Tensor] = field(default_factory=dict)
    """Diagnostics, N values each."""


class PreAggregator(Configurable, ABC):
    """Base of all pre-aggregations. Where one keeps state, it implements the state methods."""

    needs_distances: ClassVar[bool] = False
    """Does it look at distances between rows? Planned, they cost no read of the matrix of their own."""
    keeps_clients: ClassVar[bool] = True
    """Is new row i still the row of client i? Otherwise scores and flags of rows are not those of clients."""
    remembers_clients: ClassVar[bool] = False
    """Does it keep something of each client from round to round? Then rows have to belong to clients."""
    rows_per_client: ClassVar[int] = 0
    """Rows of D values that it keeps of each client."""

    def rows(self, rows: int) -> int:
        """How many rows it makes of so many."""
        return rows

    def rows_needed(self, rows: int, context: PreContext) -> int:
        """How many rows it needs to make so many."""
        return rows

    def resolved(self, context: PreContext) -> dict[str, Any]:
        """Name and parameters as they take effect, for the record."""
        return {"name": self.name, **self.params.model_dump()}

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, numbers and strings: all it remembers between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state:
            raise ParameterError(f"{self.name} keeps no state, but was given {', '.join(state)}")


class Mixer(PreAggregator):
    """A pre-aggregation that makes linear combinations of the rows."""

    averages: ClassVar[bool] = False
    """Are all combinations averages, with coefficients that sum to 1?"""

    @abstractmethod
    def mix(self, updates: Updates, measurements: Measurements, context: PreContext) -> Mixture:
        """Choose the coefficients for N rows that are finite and of one length.

        Args:
            updates: N rows; their values are better left alone, or they have to be computed.
            measurements: Norms, distances and inner products of these rows.
            context: Round and f.
        """


class ByzantineMixer(Mixer):
    """A mixer that is built for f Byzantine clients among more than f; its `Params` have an `f`."""

    class Params(Parameters):
        f: int | None = Field(None, ge=0)

    params: Params

    def byzantine(self, context: PreContext) -> int:
        """f, as it takes effect: as given, or the number of the rule behind."""
        return context.f if self.params.f is None else self.params.f

    def rows_needed(self, rows: int, context: PreContext) -> int:
        return max(rows, self.byzantine(context) + 1)

    def resolved(self, context: PreContext) -> dict[str, Any]:
        return {**super().resolved(context), "f": self.byzantine(context)}


class RowStep(PreAggregator):
    """A pre-aggregation that makes one new row of each row."""

    @abstractmethod
    def transform(self, updates: Updates, context: PreContext) -> Tensor:
        """N × D finite rows in, as many rows out; the rows that came in are not changed."""


registry: Registry[PreAggregator] = Registry(
    "pre-aggregation", "wardround.aggregators.preaggregation", base=PreAggregator
)
register = registry.register
