"""Worker processes of one thread each, for models that are bound by compute.

Every worker runs the sequential engine on one client at a time, so results are those of that engine to the
last bit, whoever trains whom. Clients are handed out as workers fall free, the largest first. Workers are
forked, and so see the stored samples without a copy; updates come back through memory that all share. Only a
client's row numbers and targets travel, a few kilobytes.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from wardround.errors import ConfigError, WorkerDied
from wardround.training.base import (
    ClientData,
    ClientTask,
    Objective,
    Precision,
    Trained,
    Trainer,
    TrainingParams,
    empty_matrix,
)
from wardround.training.sequential import SequentialTrainer

__all__ = ["ProcessesTrainer", "available_cores", "why_no_processes"]

KEPT_SPLITS = 8
"""Stored splits that workers know; a further one replaces the oldest."""
STOP = b"stop"
POLL_SECONDS = 1.0
"""How often an idle worker looks whether its parent is still there."""


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def why_no_processes() -> str | None:
    """What keeps this process from having workers, None if nothing does."""
    if not sys.platform.startswith("linux"):
        return "it forks worker processes, which is only safe on Linux"
    if multiprocessing.current_process().daemon:
        return "this process is itself a daemon worker and may not have workers of its own"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "this process already uses the GPU, which a forked worker cannot"
    return None


class ProcessesTrainer(Trainer):
    """Trains clients side by side in worker processes, which start with the first round and stay."""

    engine: ClassVar[str] = "processes"

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        params: TrainingParams,
        workers: int | None = None,
        precision: Precision = "float32",
    ) -> None:
        reason = why_no_processes()
        if reason is not None:
            raise ConfigError(f"engine 'processes' cannot run here: {reason}; engine 'sequential' can")
        self.precision = precision
        self.local = SequentialTrainer(model, objective, params, precision=precision)
        self.workers = available_cores() if workers is None else workers
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        self._splits: list[Tensor] = []
        self._pool: _Pool | None = None

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        if len(tasks) < 2:  # nothing to do side by side; the same code, so the same bits
            return self.local.train(global_weights, tasks, lr, prox_mu, outcomes)
        pool = self._pool_for(tasks, outcomes)
        try:
            return pool.train(global_weights, tasks, lr, prox_mu)
        except BaseException:  # Ctrl-C too: workers in the middle of something are of no more use
            self._stop(kill=True)
            raise

    def close(self) -> None:
        """End the workers."""
        self._stop(kill=False)

    def __del__(self) -> None:
        self._stop(kill=True)

    def _pool_for(self, tasks: Sequence[ClientTask], outcomes: int | None) -> _Pool:
        """Running workers that know the splits of these tasks and have room for their rows and parts."""
        missing = [task.data.inputs for task in tasks if not _among(task.data.inputs, self._splits)]
        if self._pool is not None and not missing and self._pool.fits(len(tasks), outcomes):
            return self._pool
        capacity = max(len(tasks), self._pool.capacity if self._pool else 0)
        self._stop(kill=False)
        for inputs in missing:
            if not _among(inputs, self._splits):
                self._splits.append(inputs)
        needed = [split for split in self._splits if _among(split, [task.data.inputs for task in tasks])]
        others = [split for split in self._splits if not _among(split, needed)]
        surplus = max(0, len(others) + len(needed) - KEPT_SPLITS)
        self._splits = others[surplus:] + needed
        self._pool = _Pool(self.local, self._splits, self.workers, capacity, outcomes)
        return self._pool

    def _stop(self, kill: bool) -> None:
        pool, self._pool = getattr(self, "_pool", None), None
        if pool is not None:
            pool.stop(kill)


def _among(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    return any(tensor is other for other in tensors)


@dataclass(frozen=True, eq=False)
class _Order:
    """One client's work as it is sent to a worker."""

    row: int
    """Of the shared matrix: holds the start if the client has its own, and takes the update."""
    client: str
    split: int
    rows: np.ndarray
    targets: np.ndarray
    seed: int
    own_start: bool
    correction: int | None
    """The row of the shared matrix that holds what is added to the client's gradients; None: nothing is."""
    transform: Callable[[Tensor], Tensor] | None
    stealth: float
    lr: float
    prox_mu: float


class _Pool:
    """Forked workers and the memory they share with this process."""

    def __init__(
        self,
        trainer: SequentialTrainer,
        splits: Sequence[Tensor],
        workers: int,
        capacity: int,
        outcomes: int | None,
    ) -> None:
        self.capacity, self.splits, self.outcomes = capacity, splits, outcomes
        self.versions = [split._version for split in splits]
        self.owner = os.getpid()
        self.dtype = trainer.network.weights.dtype
        size = trainer.layout.size
        self.shared = _shared_matrix(2 * capacity + 1, size, self.dtype)
        """(2 · capacity + 1) × D: one row per client, then one per client for corrections of gradients (no memory is
        taken by rows that nobody writes); the last one holds the global weights."""
        parts = _shared_matrix(max(1, capacity * (outcomes or 0)), size, self.dtype)
        self.parts = None if outcomes is None else parts.view(capacity, outcomes, size)
        """capacity × outcomes × D."""
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        context = multiprocessing.get_context("fork")
        for number in range(workers):
            here, there = context.Pipe()
            process = context.Process(
                target=_work,
                args=(trainer, splits, self.shared, self.parts, there, os.getpid(), [*self.pipes, here]),
                name=f"wardround-worker-{number}",
                daemon=True,
            )
            with warnings.catch_warnings():
                # Python 3.12 warns of forking beside threads. Torch's idle pool is what it sees: workers
                # run on one thread and never wake it (torch's own DataLoader forks in the same way).
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def fits(self, clients: int, outcomes: int | None) -> bool:
        """Is there room for so many clients and outcomes, and are the splits still as the workers know them?"""
        same = all(split._version == known for split, known in zip(self.splits, self.versions, strict=True))
        return same and clients <= self.capacity and outcomes == self.outcomes

    def train(
        self, global_weights: Tensor, tasks: Sequence[ClientTask], lr: float, prox_mu: float
    ) -> Trained:
        """One round: hand out clients, gather answers, and the rows at the end."""
        self.shared[-1].copy_(global_weights)
        losses = torch.empty(len(tasks), dtype=torch.float64)
        largest_first = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].data))
        waiting = deque(self._order(row, tasks[row], lr, prox_mu) for row in largest_first)
        busy: dict[int, _Order] = {}
        for worker in range(len(self.processes)):
            self._hand_out(worker, waiting, busy)
        while busy:
            pipes = {self.pipes[worker]: worker for worker in busy}
            sentinels = {self.processes[worker].sentinel: worker for worker in busy}
            ready = wait([*pipes, *sentinels])
            for thing in ready:
                worker = pipes[thing] if isinstance(thing, Connection) else sentinels[thing]  # type: ignore[index]
                if worker in busy and self.pipes[worker].poll():
                    losses[busy[worker].row] = self._answer(worker, busy[worker])
                    del busy[worker]
                    self._hand_out(worker, waiting, busy)
                elif worker in busy and not self.processes[worker].is_alive():
                    raise self._death(worker, busy[worker])
        matrix = empty_matrix(len(tasks), self.shared.shape[1], self.dtype, torch.device("cpu"))
        matrix.copy_(self.shared[: len(tasks)])
        device = global_weights.device
        parts = None if self.parts is None else self.parts[: len(tasks)].clone().to(device)
        return Trained(matrix.to(device), losses.to(device), parts)

    def _order(self, row: int, task: ClientTask, lr: float, prox_mu: float) -> _Order:
        if task.weights is not None:
            self.shared[row].copy_(task.weights)
        correction = None if task.correction is None else self.capacity + row
        if correction is not None:
            assert task.correction is not None
            self.shared[correction].copy_(task.correction)
        return _Order(
            row=row,
            client=task.client,
            split=next(i for i, split in enumerate(self.splits) if split is task.data.inputs),
            rows=task.data.rows.numpy(),
            targets=task.data.targets.numpy(),
            seed=task.seed,
            own_start=task.weights is not None,
            correction=correction,
            transform=task.transform,
            stealth=task.stealth,
            lr=lr,
            prox_mu=prox_mu,
        )

    def _hand_out(self, worker: int, waiting: deque[_Order], busy: dict[int, _Order]) -> None:
        if not waiting:
            return
        order = waiting.popleft()
        try:
            packed = pickle.dumps(order)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"client {order.client}: its transform cannot travel to a worker process ({error}); "
                "use a module's plain function, or engine 'sequential'"
            ) from None
        busy[worker] = order
        try:
            self.pipes[worker].send_bytes(packed)
        except OSError:
            raise self._death(worker, order) from None

    def _answer(self, worker: int, order: _Order) -> float:
        try:
            loss, failure, details = pickle.loads(self.pipes[worker].recv_bytes())
        except (EOFError, OSError):
            raise self._death(worker, order) from None
        if failure is not None:
            failure.add_note(f"in a worker process, training client {order.client}:\n{details}")
            raise failure
        return float(loss)

    def _death(self, worker: int, order: _Order) -> WorkerDied:
        process = self.processes[worker]
        process.join(timeout=5)
        code = process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += ", perhaps for want of memory"
        return WorkerDied(
            f"worker process {process.pid} died ({how}) while training client {order.client}; "
            "fewer workers or engine 'sequential' need less memory"
        )

    def stop(self, kill: bool) -> None:
        """End all workers and wait until they are gone."""
        if os.getpid() != self.owner:  # in a forked copy of this object: not its children
            return
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            if kill:
                process.kill()
            else:
                with contextlib.suppress(OSError):  # it may be dead already
                    pipe.send_bytes(STOP)
            pipe.close()
        for process in self.processes:
            process.join(timeout=2 * POLL_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self.processes, self.pipes = [], []


def _shared_matrix(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A matrix in memory that forked processes see alike (no file, no /dev/shm with its small limit)."""
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer(mmap.mmap(-1, rows * columns * size), dtype=dtype).view(rows, columns)


def _work(
    trainer: SequentialTrainer,
    splits: Sequence[Tensor],
    shared: Tensor,
    parts: Tensor | None,
    pipe: Connection,
    parent: int,
    inherited: Sequence[Connection],
) -> None:
    """The loop of a worker: take an order, train, answer; until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    for other in inherited:  # the parent's ends: held open here, nobody would ever see them close
        other.close()
    while True:
        try:
            while not pipe.poll(POLL_SECONDS):
                if os.getppid() != parent:
                    return
            message = pipe.recv_bytes()
            if message == STOP:
                return
            order: _Order = pickle.loads(message)
            pipe.send_bytes(_perform(trainer, splits, shared, parts, order))
        except (EOFError, OSError):
            return


def _perform(
    trainer: SequentialTrainer,
    splits: Sequence[Tensor],
    shared: Tensor,
    parts: Tensor | None,
    order: _Order,
) -> bytes:
    """Train one client and write its update into its row. Returns (loss, error, traceback), pickled."""
    try:
        data = ClientData(splits[order.split], torch.from_numpy(order.rows), torch.from_numpy(order.targets))
        correction = None if order.correction is None else shared[order.correction]
        task = ClientTask(order.client, data, order.seed, None, order.transform, correction, order.stealth)
        row = shared[order.row]
        start = row.clone() if order.own_start else shared[-1]
        own_parts = None if parts is None else parts[order.row]
        loss = trainer.train_one(start, task, order.lr, order.prox_mu, out=row, parts_out=own_parts)
    except Exception as error:
        details = traceback.format_exc()
        try:
            packed = pickle.dumps((None, error, details))
            pickle.loads(packed)
            return packed
        except Exception:  # not every exception can be packed: its words always can
            return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), details))
    return pickle.dumps((loss, None, None))
