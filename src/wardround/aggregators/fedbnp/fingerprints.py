"""All six fingerprints of a round at once: the geometry, the autoencoder's error and the Shapley values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators.base import PracticeGround
from wardround.aggregators.fedbnp.features import Geometry
from wardround.aggregators.fedbnp.shapley import coalition_game, monte_carlo_shapley
from wardround.aggregators.fedbnp.vae import Vae, comparable

__all__ = ["CANDIDATES", "Fingerprints", "take_fingerprints"]

CANDIDATES = 1_000_000
"""Numbers of candidate models that a Shapley step holds at once (always one model)."""


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """A round before the autoencoder has looked at it."""

    geometry: Geometry
    shapley: Tensor
    evaluations: int
    """How many coalitions had to be evaluated."""
    metric: float
    """The global model's own validation metric, v(∅)."""

    @property
    def length(self) -> float:
        """The median norm: the unit in which the autoencoder sees the round."""
        return float(self.geometry.norm.quantile(0.5))

    @property
    def rows(self) -> Tensor:
        """N × d: the updates as the autoencoder sees them."""
        return comparable(self.geometry.projected, self.length)

    def table(self, vae: Vae | None) -> Tensor:
        """N × 6 fingerprints; the first column is zero where there is no autoencoder yet."""
        error = torch.zeros_like(self.shapley) if vae is None else vae.error(self.rows)
        return self.geometry.table(error, self.shapley)

    def states(self, tokens: Tensor, progress: float) -> Tensor:
        """N × 9: what the agent sees of each client: standardised fingerprints, global metric, t/T, consensus."""
        shared = torch.tensor([self.metric, progress, self.geometry.consensus])
        return torch.cat([tokens.float(), shared.float().expand(len(tokens), -1)], 1)


def take_fingerprints(
    matrix: Tensor,
    geometry: Geometry,
    global_weights: Tensor,
    practice_ground: PracticeGround,
    generator: torch.Generator,
    permutations: int,
    tolerance: float,
    budget: int | None = None,
    rows: Sequence[int] | None = None,
) -> Fingerprints:
    """The fingerprints of some rows (default: all) in their order, of which the geometry is known."""
    game = coalition_game(matrix, global_weights, practice_ground.value, rows, CANDIDATES)
    shapley = monte_carlo_shapley(game, generator, permutations, tolerance, budget)
    metric = game.nobody
    return Fingerprints(geometry, shapley, game.evaluations, metric)
