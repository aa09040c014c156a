"""ARC: clip the longest rows to the norm of the longest that is left alone."""

from __future__ import annotations

from pydantic import Field

from wardround.aggregators._math.measurements import Measurements
from wardround.aggregators.preaggregation.base import (
    ByzantineMixer,
    Mixture,
    PreContext,
    register,
)
from wardround.aggregators.preaggregation.clipping import clip
from wardround.updates import Updates


@register("arc")
class AdaptiveRobustClipping(ByzantineMixer):
    r"""Clip the k = ⌊2f/N·(N−f)⌋ longest rows to the norm of the next one.

    .. math:: Y_i = U_i \min\!\Big(1, \frac{C}{\|U_i\|}\Big), \qquad C = \|U\|_{(N-k)}, \quad
        \|U\|_{(1)} \le \dots \le \|U\|_{(N)}

    Unlike a fixed threshold this keeps the robustness of the rule behind. Needs N > f. The column `arc_scale` holds
    the factor of each client.

    Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, "Adaptive Gradient Clipping for Robust Federated Learning",
    ICLR 2025.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [3.0], [4.0], [900.0]]))
    >>> aggregators.create("mean", pre=[{"name": "arc", "f": 1}]).aggregate(sent).delta
    tensor([2.8000])
    """

    class Params(ByzantineMixer.Params):
        f: int | None = Field(None, ge=0)
        """Byzantine clients to withstand; None: as many as the rule behind does (⌊0.2·N⌋ if it has no f)."""

    params: Params

    def mix(self, updates: Updates, measurements: Measurements, context: PreContext) -> Mixture:
        n, f = len(updates), self.byzantine(context)
        clipped = 2 * f * (n - f) // n
        threshold = float(updates.norms.sort().values[n - 1 - clipped])
        return clip(updates, threshold, "arc_scale")
