"""How long a matrix will take, estimated from a few rounds that are really run."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wardround.runs.config import RunConfig, load_config
from wardround.runs.identity import find_folder

__all__ = ["Estimate", "estimate"]

PATIENCE = 30.0  # seconds that a single trial may take
TRIALS = 8
ROUNDS = 3  # the first one warms up and is not counted


@dataclass(frozen=True)
class Estimate:
    """What is left to do and how long it should take on this machine."""

    left: int
    """Runs that are not finished yet."""
    seconds: float | None
    """None where no trial could be run."""
    at_least: bool = False
    """A trial was given up: the time is a lower bound."""
    reason: str | None = None

    @property
    def words(self) -> str:
        if not self.left:
            return "all of them finished"
        if self.seconds is None:
            return f"no estimate of the time: {self.reason}"
        return f"{'more than' if self.at_least else 'about'} {_duration(self.seconds)}"


def estimate(configs: Sequence[RunConfig], out: Path, jobs: int) -> Estimate:
    """Try one run of each kind and rule (at most `TRIALS`) for a few rounds, and scale up."""
    left = [config for config in configs if not _is_finished(config, out)]
    kinds: dict[str, list[RunConfig]] = {}
    for config in left:
        kinds.setdefault(_kind(config), []).append(config)
    if not left:
        return Estimate(0, 0.0)
    chosen = [members[0] for members in kinds.values()][:TRIALS]
    costs: dict[str, float] = {}
    at_least = False
    for config, result in zip(chosen, _trials(chosen), strict=True):
        if isinstance(result, str):
            return Estimate(len(left), None, reason=result)
        at_least = at_least or result is None
        costs[_kind(config)] = PATIENCE / ROUNDS if result is None else result
    mean = sum(costs.values()) / len(costs)
    seconds = sum(costs.get(_kind(config), mean) * config.rounds for config in left)
    return Estimate(len(left), seconds / min(jobs, len(left)), at_least)


def _is_finished(config: RunConfig, out: Path) -> bool:
    summary = find_folder(config, out).summary()
    return summary is not None and summary.finished


def _kind(config: RunConfig) -> str:
    plain = config.plain()
    keys = ("dataset", "model", "training", "participation", "evaluate_every")
    parts = [plain[key] for key in keys] + [plain["partition"].get("clients"), plain["aggregator"]["name"]]
    return json.dumps(parts, sort_keys=True)


def _trials(configs: Sequence[RunConfig]) -> list[float | str | None]:
    """Seconds per round, why it cannot be run, or None for a trial that took too long (and all after it)."""
    context = multiprocessing.get_context("spawn")  # nothing of the trial stays behind in this process
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try_out, args=(theirs, [c.plain() for c in configs]), daemon=True)
    process.start()
    theirs.close()
    results: list[float | str | None] = []
    try:
        for _ in configs:
            try:
                results.append(ours.recv() if ours.poll(PATIENCE) else None)
            except EOFError:
                results.append("the trial run ended without a word")
            if not isinstance(results[-1], float):
                break
    finally:
        process.kill()
        process.join()
    return results + [results[-1]] * (len(configs) - len(results))


def _try_out(pipe: Connection, configs: list[dict[str, Any]]) -> None:
    import torch

    from wardround.errors import WardroundError
    from wardround.runs.runner import build

    torch.set_num_threads(1)
    for values in configs:
        try:
            federation = build(load_config(values), workers=1)
            taken = []
            for number in range(1, ROUNDS + 1):
                start = time.perf_counter()
                federation.step(number)
                taken.append(time.perf_counter() - start)
            pipe.send(min(taken[1:]))
        except WardroundError as error:
            pipe.send(str(error))


def _duration(seconds: float) -> str:
    """
    >>> [_duration(s) for s in (40, 400, 9000, 400000)]
    ['40 seconds', '7 minutes', '2.5 hours', '4.6 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172800 else f"{seconds / 86400:.1f} days"
