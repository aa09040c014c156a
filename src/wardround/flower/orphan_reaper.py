"""A process that outlives its parent by a moment, to end what the parent could not when it was killed.

The kernel ends the children of a killed process, but not the children's own, and Flower gives those sessions of
their own. All of them inherit a mark in their environment, which is what they are known by. Run as a script with
nothing but the standard library: `guardian.py MARK`, with a pipe from the parent as standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARK = "WARDROUND_FAMILY"
"""The variable that holds the mark."""


def family(mark: str) -> list[int]:
    """The processes that have the mark, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def watch(mark: str) -> None:
    """Wait for the parent's end, however it comes; then end the whole family."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # the pipe closes when the parent ends
    while left := family(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    watch(sys.argv[1])
