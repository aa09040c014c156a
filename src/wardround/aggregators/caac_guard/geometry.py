r"""Centres and angles of the parts of updates, from their inner products alone.

All that the rule asks about N clients' parts of C outcomes is linear in them: directions, centres that are weighted
sums of directions, differences of centres. So one matrix of inner products, (N·C) × (N·C), answers every question, and
the parts themselves, of D values each, are read once (`_math/outcome_products.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wardround.updates import Layout

__all__ = ["OutputLayer", "PartAngles", "geometric_median", "output_layer_of"]

STEPS = 60
"""Of Weiszfeld's iteration. It works on N numbers, so many steps cost nothing."""
TINY = 1e-30


class PartAngles:
    """Inner products of everything that can be said as coefficients over the parts.

    A vector is an N × C table of coefficients: it stands for the sum of coefficient times part.
    """

    def __init__(self, gram: Tensor, outcomes: int) -> None:
        """Take the inner products of all parts.

        Args:
            gram: (N·C) × (N·C), what `measure_parts` gives.
            outcomes: C.
        """
        self.shape = (len(gram) // outcomes, outcomes)
        self.gram = gram
        self.lengths = gram.diagonal().clamp_min(0).sqrt().view(self.shape)
        """N × C norms."""

    def along(self, vector: Tensor) -> Tensor:
        """Inner products of every part with one vector (N × C), as N × C."""
        return (self.gram @ vector.flatten()).view(self.shape)

    def cosines_to_others(self, centre: Tensor) -> Tensor:
        """Cosines of every part to what the other clients contribute to a centre, so that nobody agrees with itself.

        Args:
            centre: N × C, what `centre` gives.

        Returns:
            N × C, 0 where either has no length; NaN for a client without whom there is no centre.
        """
        clients, outcomes = self.shape
        own_products = torch.einsum("icid->icd", self.gram.view(clients, outcomes, clients, outcomes))
        along = self.along(centre)
        of_own = (own_products @ centre[:, :, None]).squeeze(2)
        squares = (centre * along).sum() - (centre * (2 * along - of_own)).sum(1)
        shares = (centre != 0).any(1)
        alone = shares.sum() - shares.long() == 0
        lengths = self.lengths * squares.clamp_min(0).sqrt()[:, None]
        return torch.where(alone[:, None], torch.nan, (along - of_own) / lengths.clamp_min(TINY))

    def centre(self, outcome: int, scale: Tensor, weights: Tensor) -> Tensor:
        """The geometric median of the clients' scaled parts of an outcome, as a vector (N × C).

        Args:
            outcome: Which.
            scale: N factors of the parts.
            weights: N weights, not all 0.
        """
        clients, outcomes = self.shape
        block = self.gram.view(clients, outcomes, clients, outcomes)[:, outcome, :, outcome]
        shares = geometric_median(scale[:, None] * block * scale[None, :], weights)
        vector = torch.zeros(clients, outcomes, dtype=torch.float64)
        vector[:, outcome] = shares * scale
        return vector


def geometric_median(gram: Tensor, weights: Tensor) -> Tensor:
    r"""The point with the least weighted sum of distances to N points, as shares of the points (Weiszfeld, 1937).

    Args:
        gram: N × N inner products of the points.
        weights: N weights, not all 0.

    Returns:
        N shares that sum to 1.

    >>> points = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    >>> shares = geometric_median(points @ points.T, torch.ones(3, dtype=torch.float64))
    >>> round(float(shares @ points), 3)
    1.0
    """
    # numpy: a step on N numbers costs torch more in calls than in arithmetic
    products, counted = gram.numpy(), weights.numpy()
    shares = counted / counted.sum()
    squares = products.diagonal()
    # a point on the median would weigh infinitely
    nearest = 1e-6 * max(squares[counted > 0].max(), TINY)
    for _ in range(STEPS):
        along = products @ shares
        shares = counted / np.sqrt(np.maximum(squares - 2 * along + shares @ along, nearest))
        shares /= shares.sum()
    return torch.from_numpy(shares)


class OutputLayer:
    """The last linear layer of a network, whose bias shows which way an outcome pushes its own logit."""

    def __init__(self, weight: slice, bias: slice, outputs: int) -> None:
        self.weight, self.bias, self.outputs = weight, bias, outputs

    def own_logit(self, parts: Tensor) -> tuple[Tensor, Tensor]:
        """What every part does to the logit of its own outcome.

        Args:
            parts: N × C × D.

        Returns:
            N × C × inputs steps of the weights and N × C steps of the bias, in the sense in which patients of the
            outcome push: the one logit of a binary task is raised by outcome 1 and lowered by outcome 0.
        """
        outcomes = parts.shape[1]
        index = torch.arange(outcomes)
        logit = torch.zeros(outcomes, dtype=torch.long) if self.outputs == 1 else index
        sign = torch.ones(outcomes, dtype=torch.float64)
        if self.outputs == 1:
            sign[0] = -1.0
        weights = parts[:, :, self.weight].double().cpu().unflatten(2, (self.outputs, -1))
        bias = parts[:, :, self.bias].double().cpu()
        return sign[:, None] * weights[:, index, logit], sign * bias[:, index, logit]


def output_layer_of(layout: Layout | None, outcomes: int) -> OutputLayer | None:
    """The output layer of a model for so many outcomes; None where the model does not end in a layer with a bias.

    >>> layout = Layout(("0.weight", "0.bias", "2.weight", "2.bias"), ((4, 3), (4,), (1, 4), (1,)))
    >>> output_layer_of(layout, outcomes=2).bias
    slice(20, 21, None)
    """
    if layout is None or len(layout.names) < 2:
        return None
    (weight, bias), (shape, bias_shape) = layout.names[-2:], layout.shapes[-2:]
    outputs = 1 if outcomes == 2 and bias_shape == (1,) else outcomes
    if not bias.endswith("bias") or bias_shape != (outputs,) or len(shape) != 2 or shape[0] != outputs:
        return None
    return OutputLayer(layout.slices[weight], layout.slices[bias], outputs)
