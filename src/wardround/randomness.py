"""Randomness by name: every draw has its own generator, derived from the run's seed and a path.

Nothing reads or sets global random state to decide a result. A client's draws depend on (seed, round,
client) alone, so neither the order of clients nor the number of workers changes anything.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

__all__ = ["numpy_generator", "seed_for", "selection_generator", "torch_generator"]


def _entropy(path: tuple[int | str, ...]) -> int:
    """A number for the path; different paths have different numbers, 1 and "1" included."""
    named = json.dumps([part if isinstance(part, str) else int(part) for part in path])
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:16], "little")


def seed_for(*path: int | str) -> int:
    """A 63-bit seed for the draw that `path` names.

    >>> seed_for(0, "train", 3, "hospital-01") == seed_for(0, "train", 3, "hospital-01")
    True
    >>> seed_for(0, "train", 3, "hospital-01") == seed_for(0, "train", 4, "hospital-01")
    False
    """
    return _entropy(path) >> 65


def numpy_generator(*path: int | str) -> np.random.Generator:
    """A numpy generator for the draw that `path` names."""
    return np.random.Generator(np.random.PCG64(_entropy(path)))


def selection_generator(seed: int, name: str) -> np.random.Generator:
    """A numpy generator for the draw of Byzantine clients, by numpy's own derivation from (seed, name).

    Every published result with an attack depends on who is Byzantine, so this one draw keeps the derivation that it
    always had. Everything else is named by a path.
    """
    return np.random.default_rng([seed, *name.encode()])


def torch_generator(*path: int | str) -> torch.Generator:
    """A torch generator (CPU) for the draw that `path` names."""
    return torch.Generator().manual_seed(seed_for(*path))
