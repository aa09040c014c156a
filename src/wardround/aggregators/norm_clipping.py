"""Norm clipping with weak differential privacy: bounded rows, their mean, and a little noise."""

from __future__ import annotations

from pydantic import Field

from wardround.aggregators._math.selection import clip_scale, gaussian
from wardround.aggregators.base import Aggregator, Context, Parameters, register, sample_weights
from wardround.updates import Aggregation, Updates


@register("norm-clipping")
class NormClipping(Aggregator):
    r"""Scale long rows down to a norm M, average by sample counts, add Gaussian noise.

    .. math:: \Delta = \sum_i w_i\, U_i \min\!\Big(1, \frac{M}{\|U_i\|}\Big) + \mathcal N(0, (\sigma M)^2),
        \qquad w_i = m_i / \textstyle\sum_j m_j

    The noise is far too small for a privacy guarantee ("weak"): it blurs backdoors. The paper gives M and the standard
    deviation as absolute numbers for each task (3 and 0.025 on EMNIST); here M is the round's median norm where none
    is given, and σ is a share of M. The draw of the noise is named by (seed, round).

    Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019 (arXiv:1911.07963).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [2.0], [900.0]]))
    >>> out = aggregators.create("norm-clipping", noise=0).aggregate(sent)
    >>> out.delta, out.columns["clip_scale"].numpy().round(3)
    (tensor([1.6667]), array([1.   , 1.   , 0.002]))
    """

    class Params(Parameters):
        norm: float | None = Field(None, gt=0)
        """M: the greatest norm of a row; None: the median norm of the round."""
        noise: float = Field(0.001, ge=0)
        """σ: standard deviation of the noise on every coordinate, as a share of M."""
        seed: int = Field(0, ge=0)
        """Names the draw of the noise."""
        sample_cap: float | None = Field(None, ge=1)
        """A reported sample count above this multiple of the round's median counts as that multiple."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        p, norms = self.params, updates.norms
        bound = float(norms.quantile(0.5)) if p.norm is None else p.norm
        scale, weights = clip_scale(norms, bound), sample_weights(updates, p.sample_cap)
        delta = context.measurements.weighted_sum(weights * scale)
        if p.noise > 0 and bound > 0:
            delta += gaussian(updates, p.noise * bound, p.seed, "norm-clipping", context.round)
        return Aggregation(delta, weights=weights, columns={"norm": norms, "clip_scale": scale})
