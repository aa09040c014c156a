"""A small process that ends the processes a killed parent leaves behind.

When a process is killed, the kernel ends its children (`processes.py` asks it to), but not their children, and
Flower puts those into sessions of their own. All of them inherit a mark in their environment; this process finds
them by it. It uses only the standard library and runs as a script, `orphan_reaper.py MARK`, with a pipe from the
parent as standard input: the pipe closes when the parent ends, however it ends. Linux only: it reads /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARK_VARIABLE = "WARDROUND_PROCESS_MARK"
"""The environment variable that holds the mark."""


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the running processes that carry the mark, except this one."""
    entry_wanted = f"{MARK_VARIABLE}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if entry_wanted in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def reap_after_parent(mark: str) -> None:
    """Wait until the parent ends, then kill every process that carries the mark."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # the pipe closes when the parent ends
    while pids := marked_processes(mark):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    reap_after_parent(sys.argv[1])
