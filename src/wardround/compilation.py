"""Compiled loops: numba, where it is installed (`pip install 'wardround[fast]'`).

Compilation is cached on disk beside the compiled file or, where that folder is read-only, in the user's cache; where
neither can be written, for the life of the process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["can_compile", "compiled_loop"]

Loop = TypeVar("Loop", bound=Callable[..., Any])


def can_compile() -> bool:
    """Is numba there? It is not loaded by this."""
    return importlib.util.find_spec("numba") is not None


def compiled_loop(function: Loop, reorder: bool = False) -> Loop:
    """The function compiled as all loops are; `reorder` where its sums may run in several lanes."""
    from numba import njit

    # `reassoc` lets a sum run in several lanes; the order is fixed at compile time, so results repeat.
    fast = {"contract", "reassoc"} if reorder else False
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fast}
    compiler: Any = njit
    loop: Loop
    try:
        loop = compiler(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write its cache to
        loop = compiler(**options)(function)
    return loop
