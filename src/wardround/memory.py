"""Memory that is done with goes back to the system."""

from __future__ import annotations

import ctypes
import os

__all__ = ["return_free_memory"]


def return_free_memory() -> None:
    """Have the allocator return what is free to the system, where it can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
