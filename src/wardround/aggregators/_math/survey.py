"""One read of the matrix for the guard and for the rule.

The guard has to read every row before it is trusted. A rule that says beforehand what it will ask of the rows
gets it from the same read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.kernels import (
    CentredGram,
    norms_and_dots,
    norms_and_gram,
    squared_distances,
    squared_norms,
)
from wardround.aggregators._math.order_statistics import mean_of_middle, norms_and_middle
from wardround.updates import Updates

__all__ = ["Survey", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What a rule will ask of a round beside the rows' norms."""

    dots_with: Tensor | None = None
    """⟨U_i, v⟩ of every row with this vector."""
    gram: bool = False
    """All inner products of the rows, about a robust centre of their own,"""
    centre: Tensor | None = None
    """or about this one,"""
    anchor: Tensor | None = None
    """and their projections on this vector (see `CentredGram`)."""
    trim: int | None = None
    """Per coordinate the mean without so many values at each end."""


class Survey:
    """The measurements of one round. What the guard's read has not given is measured when asked for.

    >>> survey = Survey(Wanted(dots_with=torch.tensor([0.0, 2.0])))
    >>> updates = Updates(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    >>> survey.squared_norms(updates.matrix).tolist(), survey.of(updates).dots.tolist()
    ([25.0, 1.0], [8.0, 0.0])
    """

    def __init__(self, wanted: Wanted | None = None) -> None:
        self.wanted = wanted or Wanted()
        self._updates: Updates | None = None
        self._matrix: Tensor | None = None
        self._dots: tuple[Tensor, float] | None = None
        self._geometry: CentredGram | None = None
        self._middle: tuple[int, Tensor] | None = None

    def squared_norms(self, matrix: Tensor) -> Tensor:
        """‖U_i‖², not finite where a row is not; and in the same read what the rule wants. For the guard."""
        wanted, width = self.wanted, matrix.shape[1:]
        self._forget(matrix)
        vectors = [wanted.dots_with, wanted.centre, wanted.anchor]
        if any(vector is not None and vector.shape != width for vector in vectors):
            return squared_norms(matrix)  # whoever asks for a measurement will be told what does not fit
        if wanted.gram:
            squared, self._geometry = norms_and_gram(matrix, wanted.centre, wanted.anchor)
        elif wanted.dots_with is not None:
            squared, dots, own = norms_and_dots(matrix, wanted.dots_with)
            self._dots = dots, own
        elif wanted.trim is not None and 0 <= 2 * wanted.trim < len(matrix):
            squared, middle = norms_and_middle(matrix, wanted.trim)
            self._middle = wanted.trim, middle
        else:
            squared = squared_norms(matrix)
        return squared

    def of(self, updates: Updates) -> Survey:
        """The survey of the rows that passed the guard: as measured, unless some of the measured did not pass."""
        if updates.matrix is not self._matrix:
            self._forget(updates.matrix)
        self._updates = updates
        return self

    @property
    def updates(self) -> Updates:
        if self._updates is None:
            raise ValueError("a survey is of some updates: call of(updates) first")
        return self._updates

    @property
    def dots(self) -> Tensor:
        """⟨U_i, v⟩ with the wanted vector."""
        return self._products[0]

    @property
    def length(self) -> float:
        """‖v‖ of the wanted vector."""
        return self._products[1] ** 0.5

    def cosines(self, otherwise: float) -> Tensor:
        """cos(U_i, v) with the wanted vector; `otherwise` where one of the two is zero."""
        lengths = self.updates.norms * self.length
        return torch.where(lengths > 0, self.dots / lengths, otherwise)

    @property
    def geometry(self) -> CentredGram:
        """The wanted Gram matrix."""
        if self._geometry is None:
            found = norms_and_gram(self.updates.matrix, self.wanted.centre, self.wanted.anchor)[1]
            if found is None:
                raise ValueError("rows that are not finite have no distances: guard the updates first")
            self._geometry = found
        return self._geometry

    @property
    def squared_distances(self) -> Tensor:
        """‖U_i − U_j‖² for all pairs."""
        return squared_distances(self.updates, self.geometry)

    def mean_of_middle(self, dropped: int) -> Tensor:
        """Per coordinate the mean without the `dropped` smallest and largest values."""
        if self._middle is None or self._middle[0] != dropped:
            self._middle = dropped, mean_of_middle(self.updates.matrix, dropped)
        return self._middle[1]

    def _forget(self, matrix: Tensor) -> None:
        self._matrix, self._dots, self._geometry, self._middle = matrix, None, None, None

    @property
    def _products(self) -> tuple[Tensor, float]:
        if self._dots is None:
            if self.wanted.dots_with is None:
                raise ValueError("dot products with what? Wanted(dots_with=…) says")
            _, dots, own = norms_and_dots(self.updates.matrix, self.wanted.dots_with)
            self._dots = dots, own
        return self._dots
