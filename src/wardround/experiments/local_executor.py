"""Runs in parallel on this machine: worker processes that execute one configuration after the other."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from wardround.errors import print_warnings_plainly
from wardround.experiments.events import ATTEMPTS, Event, Listener, run_and_report
from wardround.runs.config import RunConfig
from wardround.worker_processes import EXPERIMENTS, worker_context

__all__ = ["run_in_processes"]


Follow = Callable[[Event], Sequence[RunConfig]]
"""The end of a run → what is to be run because of it."""


def run_in_processes(
    configs: Sequence[RunConfig],
    out: Path,
    jobs: int,
    listen: Listener,
    follow: Follow = lambda event: (),
) -> None:
    """Run all configurations with `jobs` processes, and whatever is to `follow` the end of one."""
    waiting = deque((config, 1) for config in configs)
    pool = [_Worker(out) for _ in range(min(jobs, len(waiting)))]
    try:
        _hand_out(waiting, pool, listen, follow)
    finally:
        for worker in pool:
            worker.stop()


def _hand_out(
    waiting: deque[tuple[RunConfig, int]], pool: list[_Worker], listen: Listener, follow: Follow
) -> None:
    _give_work(pool, waiting)
    while busy := {worker.pipe: worker for worker in pool if worker.config is not None}:
        for pipe in wait(list(busy)):
            worker = busy[pipe]
            config, attempt = worker.config, worker.attempt
            assert config is not None
            try:
                event: Event = worker.pipe.recv()
            except (EOFError, OSError):
                worker.restart()
                if attempt < ATTEMPTS:
                    waiting.append((config, attempt + 1))
                    event = Event("started", config.run_name, reason="its worker died; trying again")
                else:
                    event = Event("failed", config.run_name, reason="its worker process died twice")
            else:
                if not event.ends_the_run:
                    listen(event)
                    continue
            listen(event)
            worker.config = None
            if event.ends_the_run:
                waiting.extend((config, 1) for config in follow(event))
            _give_work(pool, waiting)


def _give_work(pool: list[_Worker], waiting: deque[tuple[RunConfig, int]]) -> None:
    for worker in pool:
        if worker.config is None and waiting:
            worker.take(*waiting.popleft())


class _Worker:
    """A process that runs one configuration after the other; it keeps its data between runs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.config: RunConfig | None = None
        self.attempt = 0
        self._start()

    def _start(self) -> None:
        context: Any = worker_context(EXPERIMENTS)  # the type has no Process
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.out), daemon=True)
        self.process.start()
        theirs.close()  # so that a dead worker is an end of file here

    def take(self, config: RunConfig, attempt: int) -> None:
        self.config, self.attempt = config, attempt
        self.pipe.send((config.run_name, config.plain()))

    def restart(self) -> None:
        self.process.join()
        self._start()

    def stop(self) -> None:
        """End an idle worker at once; ask a busy one to stop, so that it can still write its summary."""
        if self.config is not None and self.process.pid is not None and self.process.is_alive():
            self.process.terminate()
        else:
            self.pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Connection, out: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it sends SIGTERM
    signal.signal(signal.SIGTERM, _interrupt)
    print_warnings_plainly()

    def send(event: Event) -> None:
        try:
            pipe.send(event)
        except BrokenPipeError:
            raise KeyboardInterrupt from None  # the parent is gone: stop as after SIGTERM

    with suppress(KeyboardInterrupt):  # the run's folder says by then how it ended
        for name, values in iter(lambda: _receive(pipe), None):
            send(run_and_report(name, values, out, send))


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _receive(pipe: Connection) -> tuple[str, dict[str, Any]] | None:
    try:
        work: tuple[str, dict[str, Any]] = pipe.recv()
    except (EOFError, OSError):  # the parent has closed the pipe, or was killed
        return None
    return work
