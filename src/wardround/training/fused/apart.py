"""The fused engine in a process of its own: what compiled code needs goes when that process ends.

Numba and LLVM hold about 60 MB, which a hospital that waits for its next order has no use for. The process is forked,
so that it sees the stored samples without a copy; it begins with the first training after a `close`, and loads the
compiled loops from numba's cache (0.7 processor seconds).
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

import torch
from torch import Tensor

from wardround.errors import WorkerDied
from wardround.training.base import ClientTask, Trained, Trainer
from wardround.training.fused.trainer import FusedTrainer
from wardround.training.processes import POLL_SECONDS, STOP, packed_failure

__all__ = ["FusedApart"]

FIRST_DESCRIPTOR = 3
"""After standard input, output and errors."""


class FusedApart(Trainer):
    """Trains as the given engine does, to the last bit, in a process that `close` ends."""

    engine: ClassVar[str] = "fused"

    def __init__(self, trainer: FusedTrainer) -> None:
        self.trainer = trainer
        self._process: _Process | None = None

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        splits = [task.data.inputs for task in tasks]
        if self._process is None or not self._process.knows(splits):
            self.close()
            self._process = _Process(self.trainer, splits)
        try:
            return self._process.train(global_weights, tasks, lr, prox_mu, outcomes)
        except BaseException:  # Ctrl-C too: a process in the middle of something is of no more use
            self._stop(kill=True)
            raise

    def close(self) -> None:
        """End the process."""
        self._stop(kill=False)

    def __del__(self) -> None:
        self._stop(kill=True)

    def _stop(self, kill: bool) -> None:
        process, self._process = getattr(self, "_process", None), None
        if process is not None:
            process.stop(kill)


class _Process:
    """A forked process that trains, and the splits that it was born with."""

    def __init__(self, trainer: FusedTrainer, splits: Sequence[Tensor]) -> None:
        self.splits = list(splits)
        self.versions = [split._version for split in splits]
        self.owner = os.getpid()
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_work, args=(trainer, self.splits, there, self.owner), name="wardround-fused", daemon=True
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads: see `wardround.training.processes`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        there.close()

    def knows(self, splits: Sequence[Tensor]) -> bool:
        """Were these splits there when it was forked, and are they still what they were?"""
        same = all(split._version == known for split, known in zip(self.splits, self.versions, strict=True))
        return same and all(any(split is known for known in self.splits) for split in splits)

    def train(self, *order: Any) -> Trained:
        """Send an order, wait for what comes of it."""
        packed = io.BytesIO()
        _Pickler(packed, self.splits).dump(order)
        try:
            self.pipe.send_bytes(packed.getvalue())
            trained, failure, details = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join(timeout=5)
            raise WorkerDied(
                f"the training process {self.process.pid} died (exit code {self.process.exitcode}; "
                f"-{signal.SIGKILL.value} is often want of memory)"
            ) from None
        if failure is not None:
            failure.add_note(f"in the training process:\n{details}")
            raise failure
        assert isinstance(trained, Trained)
        return trained

    def stop(self, kill: bool) -> None:
        """End the process and wait until it is gone."""
        if os.getpid() != self.owner:  # in a forked copy of this object: not its child
            return
        if kill:
            self.process.kill()
        else:
            with contextlib.suppress(OSError):  # it may be dead already
                self.pipe.send_bytes(STOP)
        self.pipe.close()
        self.process.join(timeout=2 * POLL_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


class _Pickler(pickle.Pickler):
    """Leaves out splits, which the process has."""

    def __init__(self, file: io.BytesIO, splits: Sequence[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.splits = splits

    def persistent_id(self, thing: Any) -> int | None:
        """The number of a split."""
        return next((number for number, split in enumerate(self.splits) if split is thing), None)


class _Unpickler(pickle.Unpickler):
    """Puts the splits in again."""

    def __init__(self, file: io.BytesIO, splits: Sequence[Tensor]) -> None:
        super().__init__(file)
        self.splits = splits

    def persistent_load(self, number: int) -> Tensor:
        """The split of that number."""
        return self.splits[number]


def _work(trainer: FusedTrainer, splits: Sequence[Tensor], pipe: Connection, parent: int) -> None:
    """Take an order, train, answer; until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    # Locks and connections of the parent: held open here, nobody would see the parent's death.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor >= FIRST_DESCRIPTOR and descriptor != pipe.fileno():
            with contextlib.suppress(OSError):  # the one that the list was read with
                os.close(descriptor)
    while True:
        try:
            while not pipe.poll(POLL_SECONDS):
                if os.getppid() != parent:
                    return
            message = pipe.recv_bytes()
            if message == STOP:
                return
            pipe.send_bytes(_perform(trainer, splits, message))
        except (EOFError, OSError):
            return


def _perform(trainer: FusedTrainer, splits: Sequence[Tensor], message: bytes) -> bytes:
    """Train as ordered. Returns (what was trained, error, traceback), pickled."""
    try:
        order = _Unpickler(io.BytesIO(message), splits).load()
        return pickle.dumps((trainer.train(*order), None, None))
    except Exception as error:
        return packed_failure(error)
