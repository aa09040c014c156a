"""Rows that are linear combinations of other rows, known by their coefficients until somebody needs the values.

A pre-aggregation such as nearest-neighbour mixing replaces the N rows of a round by N′ mixtures M·U. Norms, distances,
inner products and weighted sums of the mixtures follow from those of the rows: the D coordinates of a mixture are
computed only for a rule that looks at coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.aggregators._math.columns import for_each, for_each_range
from wardround.aggregators._math.compiled import MIXED_COLUMNS, loops_for, mixed_loops_for
from wardround.aggregators._math.kernels import (
    CentredGram,
    squared_distances,
    squared_norms,
    summing_precision,
    weighted_sum,
)
from wardround.aggregators._math.measurements import MeasurementPlan, Measurements
from wardround.aggregators._math.order_statistics import mean_nearest_median, mean_of_middle
from wardround.aggregators._math.shared_sums import GROUP, shared_sums
from wardround.updates import Updates

__all__ = [
    "MixedMeasurements",
    "MixedUpdates",
    "for_each_mixed_block",
    "mix_rows",
    "mixed_middle",
    "mixed_nearest_median",
]

MIXED_VALUES = 2**17
"""Values of mixtures that are made at a time: half a megabyte stays in the cache."""
SHORT = 1e-2
"""A mixture whose squared norm is below this share of the centre's has lost digits to cancellation."""


def mix_rows(matrix: Tensor, coefficients: Tensor) -> Tensor:
    """Compute M·U, in the precision of the matrix.

    Args:
        matrix: U, N × D rows.
        coefficients: M, N′ × N.

    Returns:
        N′ × D rows.

    >>> mix_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([[2., 3.]])
    """
    out = matrix.new_empty(len(coefficients), matrix.shape[1])

    def keep(start: int, mixed: Tensor) -> None:
        out[:, start : start + mixed.shape[1]] = mixed

    for_each_mixed_block(matrix, coefficients, keep)
    return out


def for_each_mixed_block(matrix: Tensor, coefficients: Tensor, use: Callable[[int, Tensor], None]) -> None:
    """Call `use(start, mixed)` with the columns of M·U from `start` on, a block at a time that stays in the cache."""
    precision = summing_precision(matrix, coefficients)
    factors, loops = coefficients.to(matrix.device, precision).contiguous(), loops_for(matrix)
    columns = matrix.shape[1]
    width = max(MIXED_COLUMNS, MIXED_VALUES // max(1, len(factors)))
    if loops is None or precision != matrix.dtype or columns < MIXED_COLUMNS:
        for start in range(0, columns, width):
            use(start, (factors @ matrix[:, start : start + width].to(precision)).to(matrix.dtype))
        return
    arrays = matrix.numpy(), factors.numpy()

    def work(number: int) -> None:
        stop = min((number + 1) * width, columns)
        start = max(0, min(number * width, stop - MIXED_COLUMNS))
        mixed = matrix.new_empty(len(factors), stop - start)
        loops.mix_rows(*arrays, mixed.numpy(), start, stop)
        use(start, mixed)

    for_each(range(-(-columns // width)), work)


def mixed_middle(matrix: Tensor, coefficients: Tensor, dropped: int) -> Tensor:
    """Compute `mean_of_middle` of M·U, whose values never leave the cache.

    Args:
        matrix: U, N × D rows.
        coefficients: M, N′ × N.
        dropped: Values to leave out at each end of a column.

    Returns:
        D values.
    """
    n = len(coefficients)

    def kernel(loops: ModuleType, *shape: int) -> Callable[..., None]:
        return loops.mixed_middle_kernel(*shape, dropped, n - 1 - dropped)  # type: ignore[no-any-return]

    return _reduce(matrix, coefficients, range(n), kernel, lambda mixed: mean_of_middle(mixed, dropped))


def mixed_nearest_median(
    matrix: Tensor, coefficients: Tensor, dropped: int, rows: Sequence[int] | None = None
) -> Tensor:
    """Compute `mean_nearest_median` of M·U, or of the mixtures at the places `rows`; otherwise as `mixed_middle`."""
    chosen = range(len(coefficients)) if rows is None else rows

    def kernel(loops: ModuleType, *shape: int) -> Callable[..., None]:
        return loops.mixed_nearest_kernel(*shape, dropped)  # type: ignore[no-any-return]

    return _reduce(
        matrix, coefficients, chosen, kernel, lambda mixed: mean_nearest_median(mixed, dropped, rows)
    )


def _reduce(
    matrix: Tensor,
    coefficients: Tensor,
    chosen: Sequence[int],
    kernel: Callable[..., Callable[..., None]],
    reduce: Callable[[Tensor], Tensor],
) -> Tensor:
    """D values, each made of its own column of the mixtures.

    By a compiled kernel that mixes and orders where the mixtures share sums; otherwise by `reduce`, block by block.
    """
    out, loops = matrix.new_empty(matrix.shape[1]), mixed_loops_for(matrix, len(chosen))
    shared = shared_sums(coefficients) if loops is not None else None
    if loops is not None and shared is not None and summing_precision(matrix, coefficients) == matrix.dtype:
        values, places = matrix.numpy(), shared.places[list(chosen)]
        loop = kernel(loops, len(chosen), len(shared.rows) // GROUP, places.shape[1])
        factors = np.append(shared.factors, 1).astype(values.dtype)
        arrays = values, shared.rows, factors, places, out.numpy()
        for_each_range(matrix.shape[1], lambda _, start, stop: loop(*arrays, start, stop))
        return out

    def keep(start: int, mixed: Tensor) -> None:
        out[start : start + mixed.shape[1]] = reduce(mixed)

    for_each_mixed_block(matrix, coefficients, keep)
    return out


class MixedUpdates(Updates):
    """Updates whose rows are mixtures of another round's rows. `matrix` is computed on first use."""

    def __init__(
        self,
        source: Updates,
        coefficients: Tensor,
        clients: Sequence[str],
        num_samples: Tensor,
        metrics: dict[str, Tensor],
    ) -> None:
        """Describe N′ mixtures of the N rows of `source`, none of which is malformed.

        Args:
            source: N updates, which may be mixtures themselves.
            coefficients: N′ × N, float64.
            clients: N′ names.
            num_samples: N′ sample counts.
            metrics: name → N′ values.
        """
        if isinstance(source, MixedUpdates):
            coefficients, source = coefficients @ source.coefficients, source.source
        fields: dict[str, Any] = {
            "source": source,
            "coefficients": coefficients,
            "clients": tuple(clients),
            "num_samples": num_samples,
            "metrics": metrics,
            "layout": source.layout,
            "measure_norms": lambda: squared_norms(self.matrix),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    source: Updates
    """N updates that are no mixtures."""
    coefficients: Tensor
    """M: N′ × N, float64."""
    measure_norms: Callable[[], Tensor]
    """Gives the N′ squared norms; `MixedMeasurements` knows a way that does not need the values."""

    @cached_property
    def matrix(self) -> Tensor:
        """N′ × D: the mixtures themselves."""
        return mix_rows(self.source.matrix, self.coefficients)

    @cached_property
    def squared_norms(self) -> Tensor:
        return self.measure_norms()

    def __len__(self) -> int:
        return len(self.coefficients)

    @property
    def dimension(self) -> int:
        return self.source.dimension

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def is_average(self) -> bool:
        """Do the coefficients of every mixture sum to 1?"""
        return _is_average(self.coefficients)

    def select(self, rows: Sequence[int]) -> Updates:
        return Updates(self.matrix, self.clients, self.num_samples, self.metrics, self.layout).select(rows)


class MixedMeasurements(Measurements):
    """The measurements of mixtures, from those of the rows they are made of wherever these are enough."""

    def __init__(
        self, before: Measurements, coefficients: Tensor, updates: MixedUpdates, plan: MeasurementPlan
    ) -> None:
        """Derive what is measured of `updates`.

        Args:
            before: The measurements of the N rows that were mixed last.
            coefficients: N′ × N: how.
            updates: The N′ mixtures, in terms of the rows that were sent.
            plan: What the rule behind asks of the mixtures.
        """
        super().__init__(plan)
        self._before, self._last_mixing = before, coefficients
        self.source: Measurements = before.source if isinstance(before, MixedMeasurements) else before
        """The measurements of the rows that were sent."""
        self._mixed, self._updates = updates, updates
        object.__setattr__(updates, "measure_norms", self._squared_norms)

    def of(self, updates: Updates, rows: Tensor | None = None) -> Measurements:
        if updates is not self._mixed:
            return Measurements(self.plan).of(updates, rows)
        return self

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if "matrix" in self._mixed.__dict__:
            return super().weighted_sum(weights)
        return weighted_sum(self._mixed.source.matrix, weights.double() @ self._mixed.coefficients)

    def mean_of_middle(self, dropped: int) -> Tensor:
        if "matrix" in self._mixed.__dict__:
            return super().mean_of_middle(dropped)
        return mixed_middle(self._mixed.source.matrix, self._mixed.coefficients, dropped)

    def mean_nearest_median(self, dropped: int, rows: Sequence[int] | None = None) -> Tensor:
        if "matrix" in self._mixed.__dict__:
            return super().mean_nearest_median(dropped, rows)
        return mixed_nearest_median(self._mixed.source.matrix, self._mixed.coefficients, dropped, rows)

    def row(self, place: int) -> Tensor:
        if "matrix" in self._mixed.__dict__:
            return super().row(place)
        return weighted_sum(self._mixed.source.matrix, self._mixed.coefficients[place])

    @property
    def geometry(self) -> CentredGram:
        if self._geometry is None and self._is_linear:
            self._geometry = self._mixed_gram()
        return super().geometry

    @property
    def squared_distances(self) -> Tensor:
        if not _is_average(self._last_mixing):
            return squared_distances(self._mixed, self.geometry)
        # ‖Σ_a δ_a U_a‖² = −½ Σ_ab δ_a δ_b ‖U_a − U_b‖² for coefficients δ that sum to 0. Exact in the distances: two
        # mixtures of the same rows are at distance 0, which products about a far centre could not say.
        mixing, places = _distinct(self._last_mixing)
        between = mixing @ self._before.squared_distances @ mixing.T
        own = between.diagonal()
        squared = between - (own[:, None] + own[None, :]) / 2
        squared = ((squared + squared.T) / 2).clamp(min=0).fill_diagonal_(0)
        return squared[places][:, places]

    @property
    def _products(self) -> tuple[Tensor, float]:
        if self._dots is None and self.source.plan.dots_with is self.plan.dots_with:
            dots, own = self.source._products
            self._dots = self._mixed.coefficients @ dots, own
        return super()._products

    @property
    def _is_linear(self) -> bool:
        """Does the Gram matrix of the rows give that of the mixtures, about the same centre?"""
        wanted, known = self.plan, self.source.plan
        if not known.gram or wanted.centre is not known.centre:
            return False
        if wanted.anchor is not None:
            return wanted.anchor is known.anchor and self._mixed.is_average
        return known.on_centre or self._mixed.is_average

    def _mixed_gram(self) -> CentredGram:
        r"""M(U − c)(U − c)ᵀMᵀ, and what coefficients that do not sum to 1 add to it.

        With x = U − 1c and r = M1 − 1, the rows MU − 1c are Mx + rc. So, with p = xc and b = ‖c‖²,
        G′ = MGMᵀ + (Mp)rᵀ + r(Mp)ᵀ + b·rrᵀ and p′ = Mp + b·r.
        """
        known, (mixing, places) = self.source.geometry, _distinct(self._mixed.coefficients)
        gram, projections = mixing @ known.gram @ mixing.T, mixing @ known.projections
        if not self._mixed.is_average:
            excess = mixing.sum(1) - 1
            cross = projections[:, None] * excess
            gram = gram + cross + cross.T + known.base_squared * excess[:, None] * excess
            projections = projections + known.base_squared * excess
        gram = ((gram + gram.T) / 2)[places][:, places]
        return CentredGram(known.centre, gram, projections[places], known.base_squared)

    def _squared_norms(self) -> Tensor:
        mixing, rows = self._mixed.coefficients, self._mixed.source
        if mixing.shape[0] == mixing.shape[1] and bool((mixing == mixing.diagonal().diag()).all()):
            scaled: Tensor = mixing.diagonal().square() * rows.squared_norms
            return scaled
        known = self.source.plan
        if not (known.gram and known.on_centre):
            return squared_norms(self._mixed.matrix)
        geometry = self._mixed_gram()
        squared = (geometry.gram.diagonal() + 2 * geometry.projections + geometry.base_squared).clamp(min=0)
        for i in (squared < SHORT * geometry.base_squared).nonzero().flatten().tolist():
            squared[i] = squared_norms(self.row(i)[None])[0]
        return squared


def _is_average(coefficients: Tensor) -> bool:
    return bool(((coefficients.sum(1) - 1).abs() < 1e-12).all())


def _distinct(coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """The lines of the coefficients without repetitions, and each line's place among them.

    Mixtures of the same rows are common. All that is said of them has to be the same to the last bit, or rules that
    compare would tell them apart by rounding errors.
    """
    distinct, places = coefficients.round(decimals=12).unique(dim=0, return_inverse=True)
    first = [int((places == place).nonzero()[0]) for place in range(len(distinct))]
    return coefficients[first], places
