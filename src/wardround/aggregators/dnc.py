"""DnC: leave out the rows that stick out along the main direction of some random coordinates."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.selection import mean_of
from wardround.aggregators.base import ByzantineBound, Context, register
from wardround.randomness import numpy_generator
from wardround.updates import Aggregation, Updates


@register("dnc")
class DivideAndConquer(ByzantineBound):
    r"""Mean of the rows that no iteration finds among the c·f most outlying.

    Every iteration draws `coordinates` of the D coordinates, centres the rows on their mean there, takes the top right
    singular vector v and scores

    .. math:: s_i = \langle \tilde U_i - \tilde\mu,\, v \rangle^2

    The N − ⌊c·f⌋ rows of least score stay; what stays in all iterations is averaged. Where nothing does, the rows
    that stayed most often are taken (the paper does not say). The singular vector comes from the N × N Gram matrix of
    the drawn coordinates. Draws are named by (seed, round, iteration). Needs N ≥ 2f+1. Scores are the greatest of a
    row's s_i over the iterations, as a share of that iteration's total. Flags: left out.

    Shejwalkar, Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", NDSS 2021.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 0.0], [1.2, 0.1], [1.1, 0.0], [1.3, 0.1], [9.0, 9.0]]))
    >>> aggregators.create("dnc", f=1).aggregate(sent).flags.tolist()
    [False, False, False, False, True]
    """

    clients_per_byzantine, clients_besides = 2, 1

    class Params(ByzantineBound.Params):
        iterations: int = Field(1, ge=1)
        """Draws of coordinates."""
        coordinates: int = Field(10_000, ge=1)
        """Coordinates in a draw; all where the model has fewer."""
        c: float = Field(1.0, gt=0)
        """Rows left out per Byzantine client."""
        seed: int = Field(0, ge=0)
        """Names the draws."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        p, n = self.params, len(updates)
        left_out = min(math.floor(p.c * self.byzantine(context.clients) + 1e-9), n - 1)
        stayed, scores = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.float64)
        for iteration in range(p.iterations):
            drawn = self._draw(updates.dimension, context.round, iteration)
            outlying = _outlying(updates.matrix[:, drawn].double())
            scores = torch.maximum(scores, outlying)
            stayed[outlying.sort(stable=True).indices[: n - left_out]] += 1
        kept = stayed == stayed.max()
        delta, weights = mean_of(kept, context.measurements)
        return Aggregation(delta, weights=weights, scores=scores, flags=~kept)

    def _draw(self, dimension: int, round: int, iteration: int) -> Tensor | slice:
        if dimension <= self.params.coordinates:
            return slice(None)
        generator = numpy_generator(self.params.seed, "dnc", round, iteration)
        drawn = generator.choice(dimension, self.params.coordinates, replace=False)
        return torch.from_numpy(np.sort(drawn))


def _outlying(rows: Tensor) -> Tensor:
    """N squared projections of rows, about their mean, on their first right singular vector; shares of their sum."""
    scale = rows.abs().max().clamp(min=1e-300)  # or squares of long rows would not be finite
    centred = rows / scale
    centred = centred - centred.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    along = values[-1].clamp(min=0) * vectors[:, -1].square()
    total = along.sum()
    return along / total if total > 1e-30 else torch.zeros_like(along)
