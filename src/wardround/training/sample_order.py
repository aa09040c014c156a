"""In which order a client sees its samples: decided by its seed and the epoch alone.

Every sample gets a key, a hash of (seed, epoch, sample), and samples are taken in the order of their keys.
Keys of all clients of a round are computed and sorted in a few array operations; a generator for each client would
cost more than training on a few samples does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["shuffled", "shuffled_all"]

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio: the increment of SplitMix64."""
KEY_BITS = 40
"""Of the hash; the other 24 bits leave room for which client and epoch a key belongs to."""


def shuffled(seed: int, epoch: int, n: int) -> np.ndarray:
    """A permutation of 0 … n−1.

    >>> sorted(shuffled(seed=7, epoch=0, n=5).tolist())
    [0, 1, 2, 3, 4]
    >>> bool((shuffled(7, 0, 100) == shuffled(7, 1, 100)).all())
    False
    """
    stream = _streams(np.array([seed], dtype=np.uint64), epoch)
    return np.argsort(_keys(np.repeat(stream, n), np.arange(n)), kind="stable")


def shuffled_all(seeds: Sequence[int], sizes: np.ndarray, epoch: int) -> np.ndarray:
    """The permutations of many clients, end to end.

    Args:
        seeds: One per client.
        sizes: Samples of each client.
        epoch: From 0.

    Returns:
        sum(sizes) positions: for each client `shuffled(seed, epoch, size)`, plus the sizes of the clients before it.

    >>> orders = shuffled_all([7, 9], np.array([5, 3]), epoch=0)
    >>> orders[:5].tolist() == shuffled(7, 0, 5).tolist()
    True
    >>> orders[5:].tolist() == (5 + shuffled(9, 0, 3)).tolist()
    True
    """
    if len(seeds) >= 1 << (64 - KEY_BITS):
        raise ValueError(f"at most {(1 << (64 - KEY_BITS)) - 1} clients can be shuffled at once")
    client = np.repeat(np.arange(len(seeds)), sizes)
    starts = np.cumsum(sizes) - sizes
    within = np.arange(len(client)) - starts[client]
    keys = _keys(_streams(np.array(seeds, dtype=np.uint64), epoch)[client], within)
    keys |= client.astype(np.uint64) << np.uint64(KEY_BITS)
    order = np.argsort(keys)  # not stable, but several times as fast; equal keys hardly ever happen
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def _streams(seeds: np.ndarray, epoch: int) -> np.ndarray:
    """One 64-bit number for each seed, another in every epoch."""
    return _mix(seeds + np.uint64(GOLDEN * (epoch + 1) % 2**64))


def _keys(streams: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The key of each (stream, number of the sample): `KEY_BITS` bits."""
    hashed = _mix(streams + np.uint64(GOLDEN) * (samples.astype(np.uint64) + np.uint64(1)))
    return hashed >> np.uint64(64 - KEY_BITS)


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.

    Arithmetic is modulo 2^64.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed
