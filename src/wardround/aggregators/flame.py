"""FLAME: the majority cluster of the models, clipped to the median, with noise."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from wardround.aggregators._math.clustering import density_clusters
from wardround.aggregators._math.cosines import cosine_distances
from wardround.aggregators._math.selection import clip_scale, gaussian, mean_of
from wardround.aggregators.base import Aggregator, Context, MeasurementPlan, Parameters, register
from wardround.updates import Aggregation, Updates


@register("flame")
class Flame(Aggregator):
    r"""Mean of the clients in the majority cluster, none longer than the median norm, plus Gaussian noise.

    HDBSCAN on cosine distances with a least cluster size of ⌊N/2⌋+1 finds one cluster at most; who is not in it is
    left out. Where it finds none, all stay. With S the median of all N norms:

    .. math:: \Delta = \frac{1}{|L|} \sum_{i \in L} U_i \min\!\Big(1, \frac{S}{\|U_i\|}\Big)
        + \mathcal N(0, (\lambda S)^2)

    Distances are between the clients' models w + U_i, as in the paper (`of: models`, needs `global_weights`);
    published implementations often take updates instead (`of: updates`), which tell clients apart more sharply. λ is
    0.001 for images in the paper. The draw of the noise is named by (seed, round). Scores are mean cosine distances
    to the others.

    Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.1, 0.0], [1.0, 0.05], [-1.0, 3.0]]))
    >>> aggregators.create("flame", of="updates", noise=0).aggregate(sent, global_weights=torch.zeros(2)).flags.tolist()
    [False, False, False, False, True]
    """

    needs_global_weights = True

    class Params(Parameters):
        of: Literal["models", "updates"] = "models"
        """What cosine distances are taken of."""
        noise: float = Field(0.001, ge=0)
        """λ: standard deviation of the noise on every coordinate, as a share of the median norm."""
        seed: int = Field(0, ge=0)
        """Names the draw of the noise."""

    params: Params

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        if self.params.of == "updates":
            return MeasurementPlan(gram=True, on_centre=True)
        return MeasurementPlan(gram=True, anchor=context.global_weights)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        p, n, norms = self.params, len(updates), updates.norms
        distances = cosine_distances(context.measurements.squared_distances, context.measurements.geometry)
        labels = torch.from_numpy(
            density_clusters(distances.numpy(), n // 2 + 1, 1, allow_single_cluster=True)
        )
        kept = labels >= 0
        kept = kept if bool(kept.any()) else torch.ones_like(kept)
        median = float(norms.quantile(0.5))
        scale = clip_scale(norms, median)
        delta, weights = mean_of(kept, context.measurements, scale)
        if p.noise > 0 and median > 0:
            delta += gaussian(updates, p.noise * median, p.seed, "flame", context.round)
        scores = distances.sum(1) / max(n - 1, 1)
        columns = {"norm": norms, "clip_scale": scale}
        return Aggregation(delta, weights=weights, scores=scores, flags=~kept, columns=columns)
