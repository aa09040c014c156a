"""FedMed: weight clients by the training loss they report, within bounds."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD
from wardround.aggregators.base import Aggregator, Context, Parameters, register
from wardround.errors import ParameterError
from wardround.updates import Aggregation, Updates


@register("fedmed")
class FedMed(Aggregator):
    r"""Mean weighted by quality scores :math:`q_i = 1/(\mathrm{loss}_i + \epsilon)`, clipped over the clients.

    .. math:: w_i = \tilde q_i / \textstyle\sum_j \tilde q_j, \qquad \tilde q_i = \begin{cases}
        q_i & \text{none}\\
        \mathrm{clamp}(q_i, P_{lower}, P_{upper}) & \text{percentile}\\
        \mathrm{clamp}(q_i, \max(0, M - k s), M + k s),\; M = \mathrm{median}(q),\;
        s = \mathrm{MAD}(q)/0.6745 & \text{mad}
        \end{cases}

    k is `k_mad` (3), the percentiles are `p_lower` (5) and `p_upper` (95), ε is `epsilon` (1e-6).
    The loss is what the client says it is (`metrics={"loss": …}`), so it can be a lie; the clipping bounds
    what a lie can buy. A loss that is no loss (NaN, infinite, negative) earns weight 0 and takes no part
    in the bounds; where nobody reports a usable one the round is skipped. MAD = 0 means that at least half
    of the clients agree: everyone then counts like them.

    FEDMED framework description, sections 3 to 5 (quality score, weights, clipping).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.eye(4), metrics={"loss": [0.5, 0.6, 0.4, 0.0]})
    >>> unclipped = aggregators.create("fedmed", clip="none").aggregate(sent)
    >>> bool(unclipped.weights[3] > 0.99999)
    True
    >>> aggregators.create("fedmed").aggregate(sent).weights.numpy().round(2)
    array([0.19, 0.16, 0.24, 0.4 ])
    """

    sees = "reports"

    class Params(Parameters):
        new: ClassVar[frozenset[str]] = frozenset({"k_mad", "p_lower", "p_upper", "epsilon"})

        clip: Literal["none", "percentile", "mad"] = "mad"
        """How quality scores are bounded."""
        k_mad: float = Field(3.0, gt=0)
        """`mad`: scores may be this many robust deviations from the median."""
        p_lower: float = Field(5.0, ge=0, lt=100)
        """`percentile`: the lower bound, in percent."""
        p_upper: float = Field(95.0, gt=0, le=100)
        """`percentile`: the upper bound, in percent."""
        epsilon: float = Field(1e-6, gt=0)
        """Added to a loss before it is inverted."""

        @model_validator(mode="after")
        def _percentiles_are_in_order(self) -> FedMed.Params:
            if self.p_lower >= self.p_upper:
                raise ValueError(f"p_lower must be below p_upper, got {self.p_lower} and {self.p_upper}")
            return self

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        if "loss" not in updates.metrics:
            raise ParameterError("fedmed needs the clients' training loss: Updates(…, metrics={'loss': …})")
        loss = updates.metrics["loss"]
        usable = torch.isfinite(loss) & (loss >= 0)
        if not bool(usable.any()):
            return Aggregation(
                torch.zeros(updates.dimension, dtype=updates.dtype),
                weights=torch.zeros_like(loss),
                skipped="no client reported a training loss that is finite and not negative",
            )
        quality = torch.where(usable, 1 / (loss.clamp(min=0) + self.params.epsilon), 0.0)
        low, high = self._bounds(quality[usable])
        clipped = torch.where(usable, quality.clamp(low, high), 0.0)
        weights = clipped / clipped.sum()
        delta = context.measurements.weighted_sum(weights)
        return Aggregation(delta, weights=weights, columns={"quality": quality, "clipped_quality": clipped})

    def _bounds(self, quality: Tensor) -> tuple[float, float]:
        if self.params.clip == "none":
            return 0.0, torch.inf
        if self.params.clip == "percentile":
            low, high = (self.params.p_lower / 100, self.params.p_upper / 100)
            return quality.quantile(low).item(), quality.quantile(high).item()
        middle = quality.quantile(0.5)
        reach = self.params.k_mad * (quality - middle).abs().quantile(0.5) / GAUSSIAN_MAD
        return max(0.0, (middle - reach).item()), (middle + reach).item()
