r"""Gaussian noise for deployments: from the operating system's generator, on a grid, never the same twice.

Noise that is added to floating-point numbers gives away what it was added to: which sums are possible depends on the
value (Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012). So the update is
rounded to a grid first, and the noise is a whole number of grid steps, drawn from the discrete Gaussian

.. math:: P(X = k) \propto e^{-k^2/2\sigma^2}

by rejection from the discrete Laplace distribution, which protects as the continuous Gaussian does (Canonne, Kamath and
Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithm 3). Every uniform number is made of
53 bits from `os.urandom`; probabilities are right to that precision.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "STEPS_PER_SIGMA",
    "SystemNoise",
    "clip_and_add_system_noise",
    "discrete_gaussian",
    "system_normal",
]

RandomBytes = Callable[[int], bytes]
STEPS_PER_SIGMA = 2**20
"""Grid steps per standard deviation of the noise: rounding to the grid is a millionth of the noise."""


def discrete_gaussian(count: int, sigma: float, random_bytes: RandomBytes = os.urandom) -> np.ndarray:
    """Independent draws of the discrete Gaussian.

    Args:
        count: how many.
        sigma: scale, in units of the grid; at least 1.
        random_bytes: where randomness comes from: number of bytes → bytes.

    Returns:
        `count` whole numbers, int64.

    >>> draws = discrete_gaussian(10_000, 8.0)
    >>> bool(abs(draws.mean()) < 1), bool(7 < draws.std() < 9)
    (True, True)
    """
    if not 1 <= sigma < 2**40:
        raise ValueError(f"sigma must be from 1 to 2**40 grid steps, got {sigma}")
    scale = math.floor(sigma) + 1  # of the discrete Laplace distribution that is drawn from
    result = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        wanted = max(64, int(1.6 * (count - filled)))  # about three of four are kept
        uniform = _uniform(3 * wanted, random_bytes).reshape(3, wanted)
        # |Y| is geometric: P(|Y| ≥ k) = e^(−k/scale); zero with a minus sign is drawn again, or it would count twice.
        size = np.floor(-scale * np.log(uniform[0])).astype(np.int64)
        negative = uniform[1] < 0.5
        keep = uniform[2] < np.exp(-((size - sigma**2 / scale) ** 2) / (2 * sigma**2))
        keep &= ~(negative & (size == 0))
        drawn = np.where(negative, -size, size)[keep][: count - filled]
        result[filled : filled + len(drawn)] = drawn
        filled += len(drawn)
    return result


def system_normal() -> float:
    """A draw of the standard normal distribution, on a grid of 2⁻²⁰, from the operating system's generator."""
    return float(discrete_gaussian(1, float(STEPS_PER_SIGMA))[0]) / STEPS_PER_SIGMA


def clip_and_add_system_noise(
    row: Tensor, clip: float, multiplier: float, random_bytes: RandomBytes = os.urandom
) -> Tensor:
    """What a client of a deployment sends: its update clipped to norm `clip`, plus noise of `multiplier · clip`.

    An update that is not finite counts as zero: where the infinities are would tell what no noise covers.

    Args:
        row: D values.
        clip: S, the largest norm; the rounded update is not longer either.
        multiplier: σ/S.
        random_bytes: where randomness comes from.

    Returns:
        D multiples of the grid step σ·2⁻²⁰, in the dtype of `row`.
    """
    sigma = multiplier * clip
    step = sigma / STEPS_PER_SIGMA
    values = row.detach().double().numpy()
    norm = float(np.linalg.norm(values))
    if not math.isfinite(norm):
        values = np.zeros_like(values)
    elif norm > clip:
        values = values * (clip / norm)
    whole = np.trunc(values / step)  # towards zero: rounding must not make the update longer
    noisy = (whole + discrete_gaussian(len(values), float(STEPS_PER_SIGMA), random_bytes)) * step
    return torch.from_numpy(noisy).to(row.dtype)


class SystemNoise:
    """The operating system's randomness, for DP-SGD (a `training.dp_sgd.NoiseSource`)."""

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        self.random_bytes = random_bytes

    def uniform(self, count: int) -> Tensor:
        """`count` numbers in (0, 1]."""
        return torch.from_numpy(_uniform(count, self.random_bytes))

    def add_gaussian(self, values: Tensor, clip: float, multiplier: float) -> Tensor:
        """The values (D), a sum that one sample changes by at most `clip`, plus noise of `multiplier` times that.

        On a grid of `multiplier · clip · 2⁻²⁰` rounding can move two neighbours apart by √D steps more. The noise is
        larger by that share, so that it is `multiplier` times the sensitivity of what is rounded.
        """
        step = multiplier * clip / STEPS_PER_SIGMA
        whole = np.trunc(values.detach().double().numpy() / step)
        sensitivity = clip / step + math.sqrt(len(whole))
        noise = discrete_gaussian(len(whole), multiplier * sensitivity, self.random_bytes)
        return torch.from_numpy((whole + noise) * step).to(values.dtype)


def _uniform(count: int, random_bytes: RandomBytes) -> np.ndarray:
    """Numbers in (0, 1], multiples of 2⁻⁵³."""
    drawn = np.frombuffer(random_bytes(8 * count), dtype="<u8") >> np.uint64(11)
    return (drawn.astype(np.float64) + 1.0) * 2.0**-53
