"""SignGuard: the largest cluster by the share of positive, zero and negative values."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.clustering import mean_shift_clusters
from wardround.aggregators._math.selection import clip_scale, mean_of, name_order
from wardround.aggregators.base import Aggregator, Context, Parameters, register
from wardround.randomness import numpy_generator
from wardround.updates import Aggregation, Updates


@register("signguard")
class SignGuard(Aggregator):
    r"""Mean of the clients with a usual norm and usual signs, none longer than the median norm.

    Two filters, and who passes both is averaged after clipping to the median norm M:

    - norms: 0.1·M < ‖U_i‖ < 3·M;
    - signs: of a tenth of the coordinates, drawn anew every round, the shares of positive, zero and negative values,
      each divided by its greatest value over the clients; mean shift on these three; the largest cluster stays.

    .. math:: \Delta = \frac{1}{|S|} \sum_{i \in S} U_i \min\!\Big(1, \frac{M}{\|U_i\|}\Big)

    Coordinates are drawn one by one, as the paper says; the authors' code takes a run of neighbouring ones. Where
    nobody passes both filters, who passes the norms' does, and else everyone. Draws are named by (seed, round).
    Scores are distances of the three features to their mean over the largest cluster.

    Xu, Huang, Song, Lan, "Byzantine-robust Federated Learning through Collaborative Malicious Gradient Filtering",
    ICDCS 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> rows = torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) + 1
    >>> rows[5] = -rows[5]
    >>> aggregators.create("signguard", share=1.0).aggregate(Updates(rows)).flags.tolist()
    [False, False, False, False, False, True]
    """

    class Params(Parameters):
        low: float = Field(0.1, ge=0)
        """Least norm, as a multiple of the median."""
        high: float = Field(3.0, gt=0)
        """Greatest norm, as a multiple of the median."""
        share: float = Field(0.1, gt=0, le=1)
        """Share of the coordinates whose signs are counted."""
        seed: int = Field(0, ge=0)
        """Names the draws."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        p, norms = self.params, updates.norms
        median = float(norms.quantile(0.5))
        usual = (norms > p.low * median) & (norms < p.high * median)
        features = self._signs(updates, context.round)
        order = name_order(updates)
        labels = torch.empty(len(updates), dtype=torch.int64)
        labels[order] = torch.from_numpy(mean_shift_clusters(features[order].numpy())).long()
        largest = labels == torch.bincount(labels + 1, minlength=2)[1:].argmax()
        kept = usual & largest
        if not bool(kept.any()):
            kept = usual if bool(usual.any()) else torch.ones_like(usual)
        scale = clip_scale(norms, median)
        delta, weights = mean_of(kept, context.measurements, scale)
        centre = features[largest].mean(0) if bool(largest.any()) else features.mean(0)
        scores = (features - centre).square().sum(1).sqrt()
        columns = {"norm": norms, "clip_scale": scale}
        return Aggregation(delta, weights=weights, scores=scores, flags=~kept, columns=columns)

    def _signs(self, updates: Updates, round: int) -> Tensor:
        """N × 3 shares of positive, zero and negative values, each over its greatest."""
        d = updates.dimension
        count = max(1, int(self.params.share * d))
        drawn = None
        if count < d:
            chosen = np.zeros(d, dtype=bool)  # which puts them in order faster than sorting does
            chosen[numpy_generator(self.params.seed, "signguard", round).choice(d, count, replace=False)] = (
                True
            )
            drawn = torch.from_numpy(np.flatnonzero(chosen)).to(updates.matrix.device)
        signs = np.empty((len(updates), 2))
        for own, row in zip(signs, updates.matrix, strict=True):
            values = (row if drawn is None else row.index_select(0, drawn)).cpu().numpy()
            own[:] = np.count_nonzero(values > 0), np.count_nonzero(values < 0)
        positive, negative = torch.from_numpy(signs / count).T
        shares = torch.stack([positive, 1 - positive - negative, negative], 1).clamp(min=0)
        return shares / (shares.amax(0) + 1e-8)
