"""Static clipping: no row is longer than a given norm."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.measurements import Measurements
from wardround.aggregators.preaggregation.base import Mixer, Mixture, Parameters, PreContext, register
from wardround.updates import Updates


@register("clipping")
class Clipping(Mixer):
    r"""Scale every row that is longer than `norm` down to it.

    .. math:: Y_i = U_i \min\!\Big(1, \frac{C}{\|U_i\|}\Big)

    The column `clipping_scale` holds the factor of each client.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rule = aggregators.create("mean", pre=[{"name": "clipping", "norm": 2}])
    >>> rule.aggregate(Updates(torch.tensor([[1.0], [900.0]]))).delta
    tensor([1.5000])
    """

    class Params(Parameters):
        norm: float = Field(2.0, gt=0)
        """C: the greatest norm of a row."""

    params: Params

    def mix(self, updates: Updates, measurements: Measurements, context: PreContext) -> Mixture:
        return clip(updates, self.params.norm, "clipping_scale")


def clip(updates: Updates, threshold: float, column: str) -> Mixture:
    """Bring N rows down to a norm of at most `threshold`; the factors go into a column of that name."""
    norms = updates.norms
    scale: Tensor = torch.where(norms > threshold, threshold / norms.clamp(min=1e-300), 1.0)
    return Mixture(scale.diag(), torch.eye(len(updates), dtype=torch.float64), {column: scale})
