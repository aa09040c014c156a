"""The surroundings of a federation's processes: environment variables, paths of sockets, memory."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wardround.flower import OFFLINE

__all__ = ["child_environment", "release_memory", "short_path"]

MAX_SOCKET_PATH = 100
"""Characters; Unix allows few more."""


def child_environment(home: Path) -> dict[str, str]:
    """Return the environment of child processes: no telemetry, and Flower's files in `home`, not in the user's home."""
    programs = str(Path(sys.executable).parent)  # a SuperLink finds its helpers by PATH
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
    }


def release_memory() -> None:
    """Give memory that is not in use back to the system; the C library keeps it, and orders are far between."""
    if (trim := getattr(_libc, "malloc_trim", None)) is not None:  # glibc alone has it
        trim(0)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def short_path(path: Path) -> Iterator[Path]:
    """A path for a Unix socket: this one, or one in a temporary folder where this one is too long for Unix."""
    if len(str(path)) <= MAX_SOCKET_PATH:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wardround-") as folder:
        yield Path(folder) / path.name
