"""Which engine trains in a hospital, and how the compiled one is ready before the first order, which has a deadline.

The `fused` engine is compiled once per machine and kept in numba's cache. A cold cache takes 10 to 20 seconds, and
several times that where hospitals share a machine: whole rounds would pass before anybody answers. It is compiled in a
process of its own, because the compiler's memory (about 100 MB) would stay with the trainer.
"""

from __future__ import annotations

import contextlib
import subprocess
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

__all__ = ["COMPILED_FROM", "engine_for", "load_loops", "warm_up"]

COMPILED_FROM = 10_000
"""So many training samples of one hospital are worth the compiled engine: fewer take `sequential` 0.12 s at
most per epoch of a small network, and numba and LLVM hold 60 MB for as long as the hospital waits for orders."""
LOCK = "wardround-loops.lock"
"""In the cache's folder: one hospital of a machine compiles, the others wait for it."""
COMPILING = "compiles its training loops, once on this machine; it answers the server after that"


def engine_for(engine: str, device: str, samples: int) -> str:
    """The engine of a hospital with so many training samples: `auto` compiles nothing for few.

    >>> engine_for("auto", "cpu", 900), engine_for("auto", "cpu", 90_000), engine_for("fused", "cpu", 900)
    ('sequential', 'auto', 'fused')
    """
    few = samples < COMPILED_FROM and resolve_device(device).type == "cpu"
    return "sequential" if engine == "auto" and few else engine


def warm_up(engine: str, device: str, echo: Callable[[str], None]) -> None:
    """Load the compiled loops that the first order may need; compile them where the cache has none.

    Args:
        engine: As `engine_for` gives it. An order's model decides what `auto` is, so `auto` is made ready too.
        device: Of `hospital.yaml`.
        echo: Says so before they are compiled.
    """
    on_gpu = resolve_device(device).type == "cuda"
    if engine not in ("auto", "fused") or on_gpu or why_not_fused() is not None:
        return
    folder = _cache_folder()
    if folder is None:  # numba can keep nothing here: only this process's own memory is left
        echo(COMPILING)
    else:
        with _alone(folder):
            if not _is_cached(folder):
                echo(COMPILING)
                # Where it fails, this process compiles by itself, and says what is wrong.
                subprocess.run([sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, check=False)
    load_loops()


def load_loops() -> None:
    """Train a network of two layers on two samples: the loops are the same for all networks."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    weights = torch.zeros(sum(parameter.numel() for parameter in network.parameters()))
    data = ClientData(torch.zeros(2, 2), torch.arange(2), torch.zeros(2))
    trainer = FusedTrainer(network, Objective(False, nn.Identity()), TrainingParams())
    trainer.train(weights, [ClientTask("warm-up", data, seed=0)], lr=0.1, prox_mu=0.0)


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


if __name__ == "__main__":
    load_loops()
