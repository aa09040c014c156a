"""Compiled loops over the updates' columns: the fast path of `kernels` and `order_statistics`.

numba is an optional extra (`pip install 'wardround[fast]'`), so nothing here imports it until a kernel
asks. Without it, or where the loops do not apply, the callers take a plain torch path with the same result.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

from torch import Tensor

__all__ = ["TILE", "loops_for", "sparse_loops_for"]

MOST_CLIENTS = 128
"""The largest sorting network that is generated: compiling one takes time that grows faster than N."""
TILE = 4
"""A Gram tile is TILE×TILE pairs of rows: its accumulators and operands fit the vector registers."""
LEAST_COLUMNS = 16
"""Below one vector register of columns there is nothing to gain."""


@functools.cache
def _loops() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.loops")


def sparse_loops_for(matrix: Tensor) -> ModuleType | None:
    """The module of compiled loops over sparsified rows where it can work on this matrix, else None."""
    if loops_for(matrix) is None:
        return None
    return importlib.import_module("wardround.aggregators._math.compiled.sparse_loops")


def loops_for(matrix: Tensor) -> ModuleType | None:
    """The module of compiled loops where it can work on this matrix, else None."""
    fits = (
        matrix.device.type == "cpu"
        and matrix.is_contiguous()
        and 1 <= matrix.shape[0] <= MOST_CLIENTS
        and matrix.shape[1] >= LEAST_COLUMNS
    )
    return _loops() if fits else None
