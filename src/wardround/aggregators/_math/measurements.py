"""What a rule measures of a round's rows, in the same read of the matrix that checks whether they are finite.

Every row has to be read before it is trusted (`updates.drop_malformed`). A rule that declares beforehand what it will
need of the rows gets it from that read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.kernels import (
    CentredGram,
    norms_and_dots,
    norms_and_gram,
    squared_distances,
    squared_norms,
    weighted_sum,
)
from wardround.aggregators._math.order_statistics import (
    mean_nearest_median,
    mean_of_middle,
    norms_and_middle,
)
from wardround.aggregators._math.outcome_products import PartProducts, measure_parts
from wardround.updates import Parts, Updates

__all__ = ["MeasurementPlan", "Measurements"]


@dataclass(frozen=True)
class MeasurementPlan:
    """What a rule needs of a round's rows beside their norms."""

    dots_with: Tensor | None = None
    """A vector v of D values: measure ⟨U_i, v⟩ of every row."""
    gram: bool = False
    """Measure all inner products of the rows (see `CentredGram`), about a robust centre of their own."""
    centre: Tensor | None = None
    """D values: take the inner products about this point instead."""
    anchor: Tensor | None = None
    """D values: also project the rows on this vector plus the centre."""
    on_centre: bool = False
    """Also project the rows on the centre: an anchor of zeros."""
    trim: int | None = None
    """Measure per coordinate the mean without so many values at each end."""
    parts: bool = False
    """Measure all inner products of the parts of updates that are split by outcome."""


class Measurements:
    """The measurements of one round's rows. What the first read has not given is measured when asked for.

    >>> measurements = Measurements(MeasurementPlan(dots_with=torch.tensor([0.0, 2.0])))
    >>> updates = Updates(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    >>> measurements.read(updates.matrix).tolist(), measurements.of(updates).dots.tolist()
    ([25.0, 1.0], [8.0, 0.0])
    """

    def __init__(self, plan: MeasurementPlan | None = None) -> None:
        self.plan = plan or MeasurementPlan()
        self._updates: Updates | None = None
        self._matrix: Tensor | None = None
        self._dots: tuple[Tensor, float] | None = None
        self._geometry: CentredGram | None = None
        self._middle: tuple[int, Tensor] | None = None
        self._parts: PartProducts | None = None

    def read(self, matrix: Tensor) -> Tensor:
        """Read the matrix once, and measure what is planned.

        Args:
            matrix: N × D rows, not checked yet.

        Returns:
            N squared norms in float64, not finite where a row is not.
        """
        plan, width = self.plan, matrix.shape[1:]
        if self._parts is not None and matrix is self._matrix:
            return self._parts.squared_norms
        self._forget(matrix)
        vectors = [plan.dots_with, plan.centre, plan.anchor]
        if any(vector is not None and vector.shape != width for vector in vectors):
            return squared_norms(matrix)  # asking for the measurement then says what does not fit
        if plan.gram:
            squared, self._geometry = norms_and_gram(matrix, plan.centre, self._anchor(matrix))
        elif plan.dots_with is not None:
            squared, dots, own = norms_and_dots(matrix, plan.dots_with)
            self._dots = dots, own
        elif plan.trim is not None and 0 <= 2 * plan.trim < len(matrix):
            squared, middle = norms_and_middle(matrix, plan.trim)
            self._middle = plan.trim, middle
        else:
            squared = squared_norms(matrix)
        return squared

    def read_parts(self, matrix: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
        """Read updates and their parts once, and measure both.

        Args:
            matrix: N × D updates, not checked yet.
            parts: Their parts of C outcomes.

        Returns:
            N × C norms of the parts, not finite where a part is not, and how far each client's parts are from adding
            up to its update (N).
        """
        measured = measure_parts(matrix, parts)
        if self.plan.parts:
            self._forget(matrix)
            self._parts = measured
        return measured.part_norms, measured.gaps

    def of(self, updates: Updates, rows: Tensor | None = None) -> Measurements:
        """The measurements of the updates that are well-formed: as read, unless some rows were dropped since.

        Args:
            updates: Which.
            rows: Their places among all that were sent; None: those are all.
        """
        if updates.matrix is not self._matrix:
            parts = self._parts
            self._forget(updates.matrix)
            if parts is not None and rows is not None:
                self._parts = parts.select(rows)
        self._updates = updates
        return self

    @property
    def updates(self) -> Updates:
        """The updates that are measured."""
        if self._updates is None:
            raise ValueError("measurements are of some updates: call of(updates) first")
        return self._updates

    @property
    def dots(self) -> Tensor:
        """N inner products ⟨U_i, v⟩ with the planned vector, float64."""
        return self._products[0]

    @property
    def vector_norm(self) -> float:
        """‖v‖ of the planned vector."""
        norm: float = self._products[1] ** 0.5
        return norm

    def cosines(self, otherwise: float) -> Tensor:
        """N cosines cos(U_i, v) with the planned vector, float64; `otherwise` where one of the two is zero."""
        lengths = self.updates.norms * self.vector_norm
        return torch.where(lengths > 0, self.dots / lengths, otherwise)

    @property
    def geometry(self) -> CentredGram:
        """All inner products of the rows, about the planned centre."""
        if self._geometry is None:
            rows = self.updates.matrix
            geometry = norms_and_gram(rows, self.plan.centre, self._anchor(rows))[1]
            if geometry is None:
                raise ValueError("rows that are not finite have no distances: call drop_malformed first")
            self._geometry = geometry
        return self._geometry

    @property
    def squared_distances(self) -> Tensor:
        """N × N: ‖U_i − U_j‖² for all pairs, float64."""
        return squared_distances(self.updates, self.geometry)

    @property
    def part_products(self) -> PartProducts:
        """All inner products of the parts of the updates."""
        if self._parts is None:
            if self.updates.parts is None:
                raise ValueError("updates that are not split by outcome have no parts")
            self._parts = measure_parts(self.updates.matrix, self.updates.parts)
        return self._parts

    def mean_of_middle(self, dropped: int) -> Tensor:
        """D values: per coordinate the mean without the `dropped` smallest and largest values."""
        if self._middle is None or self._middle[0] != dropped:
            self._middle = dropped, mean_of_middle(self.updates.matrix, dropped)
        return self._middle[1]

    def mean_nearest_median(self, dropped: int, rows: Sequence[int] | None = None) -> Tensor:
        """D values: per coordinate the mean of the values nearest to the median, the `dropped` farthest left out.

        Args:
            dropped: How many.
            rows: Places of the rows that count; None: all.
        """
        return mean_nearest_median(self.updates.matrix, dropped, rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """D values Σ_i weight_i · U_i, of N weights."""
        return weighted_sum(self.updates.matrix, weights)

    def row(self, place: int) -> Tensor:
        """A copy of one row, D values."""
        row: Tensor = self.updates.matrix[place].clone()
        return row

    def _anchor(self, matrix: Tensor) -> Tensor | None:
        return matrix.new_zeros(matrix.shape[1]) if self.plan.on_centre else self.plan.anchor

    def _forget(self, matrix: Tensor) -> None:
        self._matrix, self._dots, self._geometry, self._middle = matrix, None, None, None
        self._parts = None

    @property
    def _products(self) -> tuple[Tensor, float]:
        if self._dots is None:
            if self.plan.dots_with is None:
                raise ValueError("dot products with what? MeasurementPlan(dots_with=…) says")
            _, dots, own = norms_and_dots(self.updates.matrix, self.plan.dots_with)
            self._dots = dots, own
        return self._dots
