"""Nearest-neighbour mixing: every row becomes the mean of the rows nearest to it."""

from __future__ import annotations

import torch
from pydantic import Field

from wardround.aggregators._math.measurements import Measurements
from wardround.aggregators.preaggregation.base import (
    ByzantineMixer,
    Mixture,
    PreContext,
    register,
)
from wardround.updates import Updates


@register("nnm")
class NearestNeighbourMixing(ByzantineMixer):
    r"""Replace every row by the mean of its N−f nearest rows, itself among them.

    .. math:: Y_i = \frac{1}{N-f} \sum_{j \in \mathcal N_i} U_j, \qquad
        \mathcal N_i = \text{the } N-f \text{ rows of least } \|U_i - U_j\|

    Needs N > f. Gives most rules their best possible robustness where clients' data differ. Row i stays client i's:
    scores and flags are of the mixture around it, weights are traced back to the rows that were mixed.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing: A Recipe for Optimal Byzantine ML
    under Heterogeneity", AISTATS 2023.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [3.0], [-90.0]]))
    >>> aggregators.create("mean", pre=[{"name": "nnm", "f": 1}]).aggregate(sent).weights.tolist()
    [0.3333333333333333, 0.3333333333333333, 0.25, 0.08333333333333333]
    """

    needs_distances = True
    averages = True

    class Params(ByzantineMixer.Params):
        f: int | None = Field(None, ge=0)
        """Rows to leave out of each mean; None: as many as the rule behind withstands (⌊0.2·N⌋ if it has no f)."""

    params: Params

    def mix(self, updates: Updates, measurements: Measurements, context: PreContext) -> Mixture:
        n = len(updates)
        near = n - self.byzantine(context)
        distances = measurements.squared_distances.clone().fill_diagonal_(-1)  # nobody is nearer than itself
        nearest = distances.sort(dim=1, stable=True).indices[:, :near]
        mixing = torch.zeros(n, n, dtype=torch.float64).scatter_(1, nearest, 1 / near)
        return Mixture(mixing, mixing)
