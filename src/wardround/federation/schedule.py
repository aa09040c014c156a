"""When a run does what: rounds, participation, evaluation; and the clock of its phases."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from wardround.federation.server_optimizer import ServerParams
from wardround.memory import return_free_memory
from wardround.randomness import numpy_generator

__all__ = ["Schedule", "forget_peak_memory", "peak_memory_mb", "timed"]

STATUS_BYTES = 4096
"""Of what Linux says about a process: more than all of it."""


@dataclass(frozen=True)
class Schedule:
    """Number of rounds, participation per round, evaluation interval and server settings of a run."""

    rounds: int
    participation: float = 1.0
    evaluate_every: int = 1
    server_lr: float = 1.0
    root_samples: int = 100
    seed: int = 0
    server: ServerParams = field(default_factory=ServerParams)

    def evaluates(self, round: int) -> bool:
        """Every k-th round, and always the last."""
        return round % self.evaluate_every == 0 or round == self.rounds

    def per_round(self, clients: int) -> int:
        """How many of that many clients take part in a round."""
        return max(1, math.floor(self.participation * clients + 0.5))

    def draw_participants(self, clients: Sequence[str], count: int, round: int) -> tuple[str, ...]:
        """Who takes part in a round: `count` of the clients, drawn from the seed, in their order."""
        if count >= len(clients):
            return tuple(clients)
        order = numpy_generator(self.seed, "participation", round).permutation(len(clients))
        return tuple(clients[i] for i in sorted(order[:count]))


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add how long the block took to the phase's seconds."""
    start = time.perf_counter()
    yield
    seconds[phase] = round(seconds.get(phase, 0.0) + time.perf_counter() - start, 6)


def peak_memory_mb() -> float | None:
    """Peak resident memory of this process since the last `forget_peak_memory`; None where the platform does not tell.

    Where the platform cannot forget (all but Linux), it is the peak since the process began.
    """
    with suppress(OSError, ValueError):  # asked in every round: no more than this is read
        with open("/proc/self/status", "rb", buffering=0) as status:
            content = status.read(STATUS_BYTES)
        peak_at = content.index(b"VmHWM:") + len(b"VmHWM:")
        return round(int(content[peak_at : content.index(b"kB", peak_at)]) / 2**10, 1)
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def forget_peak_memory() -> None:
    """Let the peak begin anew at what is in use now: the next run of a process is not charged for the last one."""
    return_free_memory()
    with suppress(OSError):  # not Linux, or not allowed here
        Path("/proc/self/clear_refs").write_text("5")
