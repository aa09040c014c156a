"""A small process that ends the processes a killed parent leaves behind.

When a process is killed, the kernel ends its children (`processes.py` asks it to), but not their children, and
Flower puts those into sessions of their own. All of them inherit a mark in their environment; this process finds
them by it (and those that have erased their environment, as Ray's workers do, by their parent). It uses only the
standard library and runs as a script, `orphan_reaper.py MARK`, with a pipe from the parent as standard input: the
pipe closes when the parent ends, however it ends. Linux only: it reads /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK_VARIABLE = "WARDROUND_PROCESS_MARK"
"""The environment variable that holds the mark."""


def marked_processes(mark: str, adopted: Iterable[int] = ()) -> set[int]:
    """Return the running processes that carry the mark, and their descendants.

    Args:
        mark: What they carry.
        adopted: Processes that were found earlier. They count as long as they are children of this process, which
            has inherited them, even if they have lost their mark and their parent.
    """
    variable = f"{MARK_VARIABLE}={mark}".encode()
    children: dict[int, list[int]] = {}
    pending = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
                if variable in (entry / "environ").read_bytes().split(b"\0"):
                    pending.append(int(entry.name))
    pending += set(adopted) & set(children.get(os.getpid(), ()))
    pids: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in pids:
            pids.add(pid)
            pending += children.get(pid, ())
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
