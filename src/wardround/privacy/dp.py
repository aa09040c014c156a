r"""The Gaussian mechanism: how much noise for which ε and δ, and who adds it.

A client clips its update to norm S and adds :math:`\mathcal N(0, \sigma^2 I)`. Neighbouring inputs differ in one
client's update being there or being zero, so S is the sensitivity. (Between two arbitrary updates of a client it
would be 2S.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.randomness import numpy_generator, torch_generator

__all__ = ["ProfileNoise", "analytic_sigma", "classical_sigma", "clip_and_noise"]


def classical_sigma(epsilon: float, delta: float) -> float:
    r"""σ/S = √(2 ln(1.25/δ)) / ε, the formula of the textbooks; proven for ε ≤ 1 only.

    Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1.

    >>> round(classical_sigma(2.0, 1e-5), 4)
    2.4224
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def analytic_sigma(epsilon: float, delta: float) -> float:
    r"""The least σ/S that is (ε, δ)-private, for any ε: the root in σ of

    .. math:: \Phi\Big(\frac{1}{2\sigma} - \epsilon\sigma\Big)
              - e^\epsilon\,\Phi\Big(-\frac{1}{2\sigma} - \epsilon\sigma\Big) = \delta

    Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8.

    >>> analytic_sigma(2.0, 1e-5) < classical_sigma(2.0, 1e-5)
    True
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        here = log_ndtr(1 / (2 * sigma) - epsilon * sigma)
        there = epsilon + log_ndtr(-1 / (2 * sigma) - epsilon * sigma)
        spent = math.exp(here) * -math.expm1(there - here) if there < here else 0.0
        return spent - delta

    return math.exp(brentq(excess, math.log(1e-4), math.log(1e6), xtol=1e-12))


def clip_and_noise(row: Tensor, clip: float, sigma: float, seed: int, round: int, client: str) -> Tensor:
    """What a client sends: its update clipped to norm `clip`, plus Gaussian noise of deviation `sigma`·`clip`.

    The draws are named by (seed, round, client), so that a run can be repeated. A deployment must draw them
    from the system instead: whoever knows the seed can take the noise off again.
    """
    norm = float(torch.linalg.vector_norm(row.double()))
    scaled = row * min(1.0, clip / norm) if norm > 0 else row
    generator = torch_generator(seed, "dp", round, client)
    noise = torch.randn(row.shape, generator=generator, dtype=row.dtype)
    return scaled + noise * (sigma * clip)


COSINE_RANGE = 2.0
"""From −1 to 1."""


@dataclass(frozen=True)
class ProfileNoise:
    r"""Gaussian noise on the two statistics of a client and round that profiles are made of.

    Neighbours differ in one client's whole update. Its norm, bounded by S = `clip` first, lies in [0, S], and its
    cosine in [−1, 1]. Divided by the widths of these ranges, the pair :math:`(\|u\|/S, \cos/2)` moves by at most 1 in
    each coordinate, so its sensitivity is √2. Noise of deviation m√2 on both, with m from `analytic_sigma`, is
    (ε, δ)-private; in the statistics' own units that is m√2·S on the norm and m√2·2 on the cosine. One (ε, δ) covers
    both, per round.
    """

    epsilon: float
    delta: float
    clip: float

    @property
    def multiplier(self) -> float:
        """Noise deviation over sensitivity."""
        return analytic_sigma(self.epsilon, self.delta)

    def blur(
        self, norm: float, cosine: float | None, normal: Callable[[], float]
    ) -> tuple[float, float | None]:
        """The noisy pair, back in range (which costs no privacy).

        `normal` draws from the standard normal distribution.
        """
        spread = self.multiplier * math.sqrt(2)
        noisy_norm = min(max(norm, 0.0), self.clip) + spread * self.clip * normal()
        if cosine is None:
            return max(0.0, noisy_norm), None
        noisy_cosine = min(max(cosine, -1.0), 1.0) + spread * COSINE_RANGE * normal()
        return max(0.0, noisy_norm), min(max(noisy_cosine, -1.0), 1.0)

    def blur_all(
        self, norms: Tensor, cosines: Tensor, seed: int, round: int, clients: tuple[str, ...]
    ) -> tuple[Tensor, Tensor]:
        """The same for a round in the clear, with draws named by (seed, round, client)."""
        pairs = [
            self.blur(norm, cosine, numpy_generator(seed, "profile-noise", round, client).normal)
            for norm, cosine, client in zip(norms.tolist(), cosines.tolist(), clients, strict=True)
        ]
        return torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).unbind(1)  # type: ignore[return-value]
