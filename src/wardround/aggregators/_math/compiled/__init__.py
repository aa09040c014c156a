"""Compiled loops over the updates' columns: the fast path of `kernels` and `order_statistics`.

numba is an optional extra (`pip install 'wardround[fast]'`), so nothing here imports it until a kernel
asks. Without it, or where the loops do not apply, the callers take a plain torch path with the same result.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

from torch import Tensor

from wardround.compilation import can_compile

__all__ = ["TILE", "loops_for", "mixed_loops_for", "outcome_loops_for", "sparse_loops_for"]

MOST_WIRES = 128
"""The largest sorting network that becomes straight-line code: compiling one takes time that grows faster than N."""
TILE = 4
"""A Gram tile is TILE×TILE pairs of rows: its accumulators and operands fit the vector registers."""
MIXED_COLUMNS = 128
"""Columns of all rows that are mixed at a time: those of some dozen rows stay in the first-level cache."""
MOST_MIXTURES = 64
"""The most mixtures that are mixed and ordered by one piece of straight-line code: 50 compile in three seconds."""
LARGE = 2**22
"""From so many values on it is worth telling that numba is not installed."""
LEAST_COLUMNS = 16
"""Below one vector register of columns there is nothing to gain."""


@functools.cache
def _loops() -> ModuleType | None:
    if not can_compile():
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.loops")


def sparse_loops_for(matrix: Tensor) -> ModuleType | None:
    """The module of compiled loops over sparsified rows where it can work on this matrix, else None."""
    if loops_for(matrix) is None:
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.sparse_loops")


def outcome_loops_for(matrix: Tensor) -> ModuleType | None:
    """The module of compiled loops over updates that are split by outcome where it can work on them, else None."""
    if loops_for(matrix) is None:
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.outcome_loops")


def mixed_loops_for(matrix: Tensor, mixtures: int) -> ModuleType | None:
    """The module of compiled loops that mix and order in one go where it can work on so many mixtures, else None."""
    if loops_for(matrix) is None or mixtures > MOST_MIXTURES:
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.mixed_loops")


def loops_for(matrix: Tensor) -> ModuleType | None:
    """The module of compiled loops where it can work on this matrix, else None."""
    fits = (
        matrix.device.type == "cpu"
        and matrix.is_contiguous()
        and matrix.shape[0] >= 1
        and matrix.shape[1] >= LEAST_COLUMNS
    )
    loops = _loops() if fits else None
    if fits and loops is None and matrix.numel() >= LARGE:
        _say_what_is_missing()
    return loops


@functools.cache
def _say_what_is_missing() -> None:
    """Once per process."""
    warnings.warn(
        "aggregation rules run several times faster with compiled code: pip install 'wardround[fast]'",
        stacklevel=2,
    )
