"""Child processes that never outlive their parent, however it ends."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from wardround.errors import ConfigError, WardroundError
from wardround.flower import orphan_reaper as guardian

__all__ = ["Processes", "check_port", "console_script", "free_port", "one_at_a_time"]

DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36
"""Of prctl(2)."""
GRACE = 15.0
"""Seconds that processes have to end by themselves."""
TAIL = 4000
LONGEST_LOG = 20 * 2**20


class Processes:
    """Starts processes with a log file each, and stops all of them, with whatever they started.

    A child is killed by the kernel when this process dies, even by SIGKILL, and a guardian then ends whatever the
    children had started. What children leave behind earlier becomes a child of this process (Linux' subreaper),
    so that nothing is lost sight of.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.logs, self.environment = logs, {**environment, guardian.MARK: self.mark}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        _prctl(CHILD_SUBREAPER, 1)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not leave half of them running
            signal.signal(number, signal.SIG_IGN)
        try:
            self.stop()
        finally:
            self._guardian.communicate()  # closes its pipe; there is nobody left for it to end
            signal.signal(signal.SIGTERM, self._before)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, name: str, command: Sequence[str], speaks: bool = False) -> subprocess.Popen[bytes]:
        """Start a process. What it logs goes to `<name>.log`; one that speaks keeps our standard output."""
        if self.log(name).exists() and self.log(name).stat().st_size > LONGEST_LOG:
            self.log(name).replace(self.log(name).with_suffix(".old.log"))
        with open(self.log(name), "ab") as log:
            out: IO[bytes] | None = None if speaks else log
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for us: we stop the others in the right order
                preexec_fn=_die_with_parent,
            )
        self.running[name] = process
        return process

    def log(self, name: str) -> Path:
        """Where a process logs."""
        return self.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a process's log."""
        content = self.log(name).read_bytes() if self.log(name).exists() else b""
        return content[-TAIL:].decode(errors="replace")

    def check(self) -> None:
        """Raise for a process that has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise WardroundError(
                    f"{name} ended with code {process.returncode}: {last_line(self.last_words(name))} "
                    f"({self.log(name)})"
                )

    def stop(self) -> None:
        """End all of them: the server app first, which still has things to write, then from last to first."""
        apps = [pid for pid in self._below() if b"flwr-serverapp" in _command(pid)]
        _signal(apps, signal.SIGINT)
        _wait(lambda: any(pid in self._below() for pid in apps))
        for process in reversed(self.running.values()):
            if process.poll() is None:
                process.terminate()
        _wait(lambda: any(process.poll() is None for process in self.running.values()))
        _signal(self._below(), signal.SIGTERM)  # what they left behind
        _wait(lambda: bool(self._below()))
        while rest := self._below():
            _signal(rest, signal.SIGKILL)
            _reap()
            time.sleep(0.05)
        self.running.clear()

    def _below(self) -> list[int]:
        """All that was started, by this process or by what it started."""
        return [pid for pid in _descendants() if pid != self._guardian.pid]


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def console_script(name: str) -> str:
    """A program of this environment."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f"{name} is not installed; run: pip install 'wardround[flower]'")
    return str(path)


def free_port() -> int:
    """A port of loopback that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, key: str) -> None:
    """Raise where nobody can listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"{key}: cannot listen on {host}:{port} ({reason})") from None


@contextmanager
def one_at_a_time(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = open(folder / ".lock", "a")  # noqa: SIM115 - closed below, held meanwhile
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WardroundError(f"{what} is running already ({folder})") from None
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def _descendants() -> list[int]:
    """All processes below this one that have not ended."""
    _reap()
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            below.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _parent(entry: Path) -> int | None:
    """None for a process that has ended."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    """Collect adopted processes that have ended. Popen notices by itself that its own are gone."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _wait(busy: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GRACE
    while busy() and time.monotonic() < deadline:
        time.sleep(0.05)
