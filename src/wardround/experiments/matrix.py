"""Many runs: a matrix file becomes a list of configurations, worked off by processes side by side."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, WardroundError, did_you_mean
from wardround.experiments.config import RunConfig, load_config, override
from wardround.experiments.folder import RunFolder

__all__ = ["Event", "expand", "run_many"]

KEYS = ("name", "base", "axes", "runs", "seeds")
ATTEMPTS = 2  # a run whose worker died (not: whose code failed) is tried once more, from its checkpoint


@dataclass(frozen=True)
class Event:
    """Something happened to a run: started, round, finished, skipped (was finished before), failed, stopped."""

    kind: str
    run: str
    round: int = 0
    auroc: float | None = None
    reason: str | None = None


Listener = Callable[[Event], None]


def expand(matrix: Mapping[str, Any], where: str = "matrix") -> list[RunConfig]:
    """The runs of a matrix: `base` × (`axes` product or `runs` list) × `seeds`, each once.

    >>> found = expand({"base": {"rounds": 5}, "axes": {"aggregator.name": ["fedavg", "mean"]}, "seeds": [0, 1]})
    >>> [(config.aggregator["name"], config.seed) for config in found]
    [('fedavg', 0), ('fedavg', 1), ('mean', 0), ('mean', 1)]
    """
    for key in matrix:
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key '{key}'; {did_you_mean(str(key), KEYS)}")
    base = {"name": matrix.get("name", "run"), **(matrix.get("base") or {})}
    axes, runs = matrix.get("axes") or {}, matrix.get("runs") or [{}]
    for axis, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: axes.{axis} must be a list of values, got {values!r}")
    seeds = matrix.get("seeds") or [base.get("seed", 0)]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    configs = [
        load_config(override(base, {**_dotted(change), **point, "seed": seed}), where)
        for change in runs
        for point in points
        for seed in seeds
    ]
    return list({config.hash: config for config in configs}.values())


def _dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested or dotted overrides as dotted ones: {attack: {name: x}} is {"attack.name": x}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping)
        flat |= _dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def run_many(configs: Sequence[RunConfig], out: Path, jobs: int, listen: Listener) -> list[Event]:
    """Work off all runs with `jobs` processes. A failed run does not stop the others.

    Returns the last event of every run, in the order of `configs`.
    """
    ends: dict[str, Event] = {}

    def note(event: Event) -> None:
        if event.kind in ("finished", "skipped", "failed", "stopped"):
            ends[event.run] = event
        listen(event)

    waiting: deque[tuple[RunConfig, int]] = deque()
    for config in configs:
        summary = RunFolder(out / config.run_name).summary()
        if summary is not None and summary["status"] == "finished":
            note(Event("skipped", config.run_name, config.rounds, (summary["final"] or {}).get("auroc")))
        else:
            waiting.append((config, 1))
    pool = [_Worker(out) for _ in range(min(jobs, len(waiting)))]
    try:
        _work_off(waiting, pool, note)
    finally:
        for worker in pool:
            worker.stop()
    return [ends[config.run_name] for config in configs if config.run_name in ends]


def _work_off(waiting: deque[tuple[RunConfig, int]], pool: list[_Worker], note: Listener) -> None:
    for worker in pool:
        worker.take(*waiting.popleft())
    while busy := {worker.pipe: worker for worker in pool if worker.config is not None}:
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
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
                if event.kind in ("started", "round"):
                    note(event)
                    continue
            note(event)
            worker.config = None
            if waiting:
                worker.take(*waiting.popleft())


class _Worker:
    """A process that runs one configuration after the other; it keeps its data between runs."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.config: RunConfig | None = None
        self.attempt = 0
        self._start()

    def _start(self) -> None:
        # A fork server starts clean processes quickly: torch is imported once, no thread pool is forked.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["wardround.experiments.runner", "sklearn.metrics"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.out), daemon=True)
        self.process.start()
        theirs.close()  # so that a dead worker is an end of file here

    def take(self, config: RunConfig, attempt: int) -> None:
        self.config, self.attempt = config, attempt
        self.pipe.send(config.plain())

    def restart(self) -> None:
        self.process.join()
        self._start()

    def stop(self) -> None:
        """Idle: it ends at once. Busy (Ctrl-C): it is told to stop, so that it can still write its summary."""
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
    for values in iter(lambda: _receive(pipe), None):
        pipe.send(_run_one(values, out, pipe))


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _receive(pipe: Connection) -> dict[str, Any] | None:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _run_one(values: dict[str, Any], out: Path, pipe: Connection) -> Event:
    from wardround.experiments.runner import run

    config = load_config(values)
    name = config.run_name
    pipe.send(Event("started", name))
    try:
        folder = run(config, out, lambda told: pipe.send(Event("round", name, told.round)))
    except KeyboardInterrupt:
        return Event("stopped", name)
    except WardroundError as error:
        return Event("failed", name, reason=str(error))
    except Exception as error:
        traceback.print_exc()
        return Event("failed", name, reason=f"{type(error).__name__}: {error}")
    summary = folder.summary() or {}
    return Event("finished", name, config.rounds, (summary.get("final") or {}).get("auroc"))
