"""Randomness by name: every draw has its own generator, derived from the run's seed and a path.

Nothing reads or sets global random state to decide a result. A client's draws depend on (seed, round,
client) alone, so neither the order of clients nor the number of workers changes anything.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["numpy_generator", "seed_for", "torch_generator"]


def _entropy(path: tuple[int | str, ...]) -> list[int]:
    """Numbers for SeedSequence; lengths go in, so that ("ab", "c") and ("a", "bc") differ."""
    words: list[int] = []
    for part in path:
        words += [len(part), *part.encode()] if isinstance(part, str) else [int(part)]
    return words


def seed_for(*path: int | str) -> int:
    """A 63-bit seed for the draw that `path` names.

    >>> seed_for(0, "train", 3, "hospital-01") == seed_for(0, "train", 3, "hospital-01")
    True
    >>> seed_for(0, "train", 3, "hospital-01") == seed_for(0, "train", 4, "hospital-01")
    False
    """
    return int(np.random.SeedSequence(_entropy(path)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def numpy_generator(*path: int | str) -> np.random.Generator:
    """A numpy generator for the draw that `path` names."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_entropy(path))))


def torch_generator(*path: int | str) -> torch.Generator:
    """A torch generator (CPU) for the draw that `path` names."""
    return torch.Generator().manual_seed(seed_for(*path))
