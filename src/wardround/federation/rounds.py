"""When what happens in a run, and what is told of a round."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from wardround.records import ClientRecord, LeftOut

__all__ = ["RoundResult", "Schedule", "peak_memory_mb", "timed"]


@dataclass(frozen=True)
class Schedule:
    """When what happens in a run."""

    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    server_lr: float = 1.0
    root_samples: int = 100
    seed: int = 0

    def evaluates(self, round: int) -> bool:
        """Every k-th round, and always the last."""
        return round % self.evaluate_every == 0 or round == self.rounds


@dataclass
class RoundResult:
    """What is told of a round."""

    round: int
    seconds: dict[str, float]
    clients: list[ClientRecord]
    metrics: dict[str, float] | None = None
    """On the test split, where the round has an evaluation."""
    validation: dict[str, float] | None = None
    per_client: dict[str, dict[str, float]] | None = None
    """Each client's own figures on its share of the test split: after the last round, and in every evaluated
    round where BatchNorm stays local."""
    skipped: str | None = None
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    privacy: dict[str, float] | None = None
    """What the run has spent so far, where it has differential privacy."""
    memory_mb: float = 0.0
    """Peak resident memory of the process so far."""


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Write down how long a phase took."""
    start = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - start, 6)


def peak_memory_mb() -> float:
    """Of this process, so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
