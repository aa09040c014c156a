"""Makes a hospital's compiled engine ready before its first order, which has a deadline.

The `fused` engine is compiled once per machine and kept in numba's cache. A cold cache takes 10 to 20 seconds, and
several times that where hospitals share a machine: whole rounds would pass before anybody answers. It is compiled, or
loaded to see that it fits, in a process of its own: the memory of compiler and loops goes with that process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wardround.files import can_lock, locked
from wardround.training.base import ClientData, ClientTask, Objective, TrainingParams
from wardround.training.engines import resolve_device
from wardround.training.fused import FusedTrainer, why_not_fused
from wardround.training.processes import why_no_processes

__all__ = ["load_loops", "warm_up"]

LOCK = "wardround-loops.lock"
"""In the cache's folder: one hospital of a machine compiles, the others wait for it."""
COMPILING = "compiles its training loops, once on this machine; it answers the server after that"
NOT_KEPT = 3
"""Exit code: numba finds no folder that it may write its cache to."""


def warm_up(engine: str, device: str, echo: Callable[[str], None]) -> None:
    """See to it that the cache has the compiled loops that the first order may need.

    Args:
        engine: Of `hospital.yaml`. An order's model decides what `auto` is, so `auto` is made ready too.
        device: Of `hospital.yaml`.
        echo: Says so before they are compiled; called in the process that compiles them.
    """
    on_gpu = resolve_device(device).type == "cuda"
    if engine not in ("auto", "fused") or on_gpu or why_not_fused() is not None:
        return
    if why_no_processes() is None:
        process = multiprocessing.get_context("fork").Process(target=_fill_cache_and_exit, args=(echo,))
        process.start()
        process.join()
        if process.exitcode == 0:
            return
    # Loops that are loaded here are there for the processes that this one forks; or it says what is wrong.
    if not _fill_cache(echo):
        echo(COMPILING)
        load_loops()


def load_loops() -> None:
    """Train a network of two layers on two samples: the loops are the same for all networks."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    weights = torch.zeros(sum(parameter.numel() for parameter in network.parameters()))
    data = ClientData(torch.zeros(2, 2), torch.arange(2), torch.zeros(2))
    trainer = FusedTrainer(network, Objective(False, nn.Identity()), TrainingParams())
    trainer.train(weights, [ClientTask("warm-up", data, seed=0)], lr=0.1, prox_mu=0.0)


def _fill_cache_and_exit(echo: Callable[[str], None]) -> None:
    """The whole life of a forked process."""
    torch.set_num_threads(1)
    sys.exit(0 if _fill_cache(echo) else NOT_KEPT)


def _fill_cache(echo: Callable[[str], None]) -> bool:
    """Load the loops; compile them where the cache has none. False: no folder can keep them."""
    folder = _cache_folder()
    if folder is None:
        return False
    with _alone(folder):
        if not _is_cached(folder):
            echo(COMPILING)
            load_loops()
    load_loops()
    return True


def _cache_folder() -> Path | None:
    from wardround.training.fused import loops

    compiled: Any = loops.train_clients  # numba's dispatcher
    folder = compiled.stats.cache_path
    return None if folder is None else Path(folder)


def _is_cached(folder: Path) -> bool:
    """Does the cache have an index of the loops that is newer than they? Whether it fits, numba decides."""
    from wardround.training.fused import loops

    source = Path(loops.__file__)
    indices = folder.glob(f"{source.stem}.{loops.train_clients.__name__}-*.nbi")
    return any(index.stat().st_mtime >= source.stat().st_mtime for index in indices)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if can_lock():
            with contextlib.suppress(OSError):  # a folder that cannot be locked: each compiles for itself
                stack.enter_context(locked(folder / LOCK))
        yield
