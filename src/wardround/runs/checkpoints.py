"""When the state of a run goes to the disk: after every round, or at most once per interval where rounds are short."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from wardround.federation.client_state import tensor_bytes
from wardround.runs.folder import RunFolder

__all__ = ["LARGEST_COPY", "SIMULATION_SECONDS", "Checkpoints"]

SIMULATION_SECONDS = 1.0
"""What a simulation computes in this time may be computed again after a power cut or `kill -9`: writing a checkpoint
takes longer than a short round, most of it waiting for the disk."""

LARGEST_COPY = 1 << 28
"""Bytes of a state that is written after every round instead of being kept twice in memory."""


class Checkpoints:
    """Writes the checkpoints of a run; the state of a round that is not written yet is kept for the end."""

    def __init__(
        self, folder: RunFolder, interval: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`interval`: seconds between two checkpoints; 0: one after every round."""
        self.folder, self.interval, self.now = folder, interval, now
        self._written = -float("inf")  # the first round always is
        self._kept: dict[str, Any] | None = None

    def after(self, state: dict[str, Any], last: bool = False) -> None:
        """A round has ended, and its lines are written: write its state, or keep a copy of it for later."""
        is_due = self.now() - self._written >= self.interval
        if last or is_due or tensor_bytes(state) > LARGEST_COPY:
            self.folder.write_checkpoint(state)
            self._kept, self._written = None, self.now()
        else:  # a copy: the next round changes what the state refers to
            self._kept = _copy({**state, "files": self.folder.extents()}, {})

    @contextmanager
    def written_on_exit(self) -> Iterator[None]:
        """Write what is kept when the block ends, also by Ctrl-C or an error: only a killed process loses it."""
        try:
            yield
        finally:
            if self._kept is not None:
                self.folder.write_checkpoint(self._kept)
                self._kept = None


def _copy(value: Any, copies: dict[int, Tensor]) -> Any:
    """The same values in containers and tensors of their own; a tensor that occurs twice is copied once.

    `copy.deepcopy` does the same, but takes long to copy a tensor, and a short round is over sooner.
    """
    if isinstance(value, Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone()
        return copies[id(value)]
    if type(value) is dict:
        return {key: _copy(inner, copies) for key, inner in value.items()}
    if type(value) is list:
        return [_copy(inner, copies) for inner in value]
    return value if isinstance(value, str | int | float | None) else copy.deepcopy(value)
