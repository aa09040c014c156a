"""Child processes that never outlive their parent, however it ends. Linux only (prctl, /proc)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from wardround.errors import ConfigError, WardroundError
from wardround.files import LockHeld, locked, make_private_folder
from wardround.flower import orphan_reaper
from wardround.flower.log import LARGEST, rotate

__all__ = ["Processes", "check_port", "console_script", "free_port", "last_line", "one_at_a_time"]

DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36
"""Options of prctl(2)."""
GRACE_SECONDS = 15.0
"""Time that processes have to end by themselves."""
LOG_TAIL_BYTES = 4000
ROTATION_SECONDS = 60.0
"""Time between two looks at the sizes of logs."""


class Processes:
    """Starts processes, each with a log file, and stops them together with everything they started.

    A child is killed by the kernel when this process dies, even by SIGKILL; the orphan reaper then ends what the
    children had started. All of them carry a mark in their environment, and `stop` acts on marked processes and
    their descendants only: other children of this process are left alone. What a child leaves behind when it ends
    becomes a child of this process (Linux' subreaper), so that its exit status can be collected.

    Args:
        logs: Folder of the log files.
        environment: The environment of the processes.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.logs, self.environment = logs, {**environment, orphan_reaper.MARK_VARIABLE: self.mark}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: set[int] = set()
        self._rotated = -ROTATION_SECONDS

    def __enter__(self) -> Processes:
        _require_linux()
        _prctl(CHILD_SUBREAPER, 1)
        make_private_folder(self.logs)
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", orphan_reaper.__file__, self.mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._handlers = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt),
            signal.SIGINT: signal.getsignal(signal.SIGINT),
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handlers:  # a second Ctrl-C must not leave half of them running
            signal.signal(number, signal.SIG_IGN)
        try:
            self.stop()
        finally:
            self._reaper.communicate()  # closes its pipe; nothing is left for it to end
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def start(
        self, name: str, command: Sequence[str], inherit_stdout: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a process.

        Args:
            name: Its output goes to `<name>.log`.
            command: Program and arguments.
            inherit_stdout: Its standard output goes where ours goes, and only its standard error into the log.
        """
        with open(self.log(name), "ab") as log:
            out: IO[bytes] | None = None if inherit_stdout else log
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
        """Return the path of a process's log."""
        return self.logs / f"{name}.log"

    def rotate_logs(self, largest: int = LARGEST) -> None:
        """Keep logs from growing without end, if it is time to look: a server runs for months."""
        if time.monotonic() - self._rotated < ROTATION_SECONDS:
            return
        self._rotated = time.monotonic()
        for name in self.running:
            with contextlib.suppress(OSError):  # a full disk: the log stays as it is until there is room
                rotate(self.log(name), largest, is_open=True)

    def log_tail(self, name: str) -> str:
        """Return the end of a process's log."""
        content = self.log(name).read_bytes() if self.log(name).exists() else b""
        return content[-LOG_TAIL_BYTES:].decode(errors="replace")

    def check(self) -> None:
        """Raise for a process that has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise WardroundError(
                    f"{name} ended with code {process.returncode}: {last_line(self.log_tail(name))} "
                    f"({self.log(name)})"
                )

    def discard(self, name: str) -> bool:
        """Forget a process that has ended, and say whether it had."""
        if self.running[name].poll() is None:
            return False
        del self.running[name]
        return True

    def stop(self) -> None:
        """End all of them: server apps first, which still have things to write, then from last to first."""
        apps = [pid for pid in self._alive() if b"flwr-serverapp" in _command_line(pid)]
        _signal(apps, signal.SIGINT)
        _wait_while(lambda: any(pid in self._alive() for pid in apps))
        for process in reversed(self.running.values()):
            if process.poll() is None:
                process.terminate()
        _wait_while(lambda: any(process.poll() is None for process in self.running.values()))
        _signal(self._alive(), signal.SIGTERM)  # what they left behind
        _wait_while(lambda: bool(self._alive()))
        while pids := self._alive():
            _signal(pids, signal.SIGKILL)
            time.sleep(0.05)
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def _alive(self) -> set[int]:
        """Return the running processes that were started here; collect those that were left to us and have ended."""
        pids = orphan_reaper.marked_processes(self.mark, self._adopted)
        self._adopted |= pids - {process.pid for process in self.running.values()}
        for pid in self._adopted - pids:
            with contextlib.suppress(ChildProcessError):  # its own parent is still there
                os.waitpid(pid, os.WNOHANG)
            if not Path(f"/proc/{pid}").exists():
                self._adopted.discard(pid)
        return pids


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def console_script(name: str) -> str:
    """Return the path of a program installed beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f"{name} is not installed; run: pip install 'wardround[flower]'")
    return str(path)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, key: str) -> None:
    """Raise a `ConfigError` that names `key` if nothing can listen on this address."""
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
    """Hold a lock on a folder; it is released when the process ends, however it ends.

    Raises:
        WardroundError: Another process holds it; the message says that `what` is running already.
    """
    _require_linux()
    with ExitStack() as stack:
        try:
            make_private_folder(folder)
            stack.enter_context(locked(folder / ".lock", wait=False))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
        except LockHeld:
            raise WardroundError(f"{what} is running already ({folder})") from None
        yield


def _require_linux() -> None:
    if sys.platform != "linux":
        raise WardroundError(f"a federation's processes (serve, join) need Linux; this is {sys.platform}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_while(busy: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    while busy() and time.monotonic() < deadline:
        time.sleep(0.05)
