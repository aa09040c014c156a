"""DeepSight: cluster clients by what their output layers learnt, and leave out clusters of too narrow updates."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.clustering import density_clusters
from wardround.aggregators._math.selection import clip_scale, mean_of, name_order
from wardround.aggregators.base import Aggregator, Context, Parameters, register
from wardround.updates import Aggregation, Layout, Updates

WITHOUT_LAYOUT = 1000
"""Values at the end of a row that stand for the output layer where nothing says where it lies."""
MIN_SAMPLES = 2
"""Clients, itself among them, that make a client dense. Public implementations take more, for 100 clients."""


@register("deepsight")
class DeepSight(Aggregator):
    r"""Mean of the clusters whose clients trained on a usual variety of labels, clipped to the median norm.

    Of a client's output layer with C units, the energy of unit c is e_c = |Δb_c| + Σ_h |ΔW_ch|, its normalised energy
    (NEUP) is e_c² / Σ e². The number of NEUPs above max(1 %, 1/C) of the greatest is the client's *threshold
    exceedings* TE: few mean few labels. A client is suspicious where TE ≤ median(TE)/2.

    Three clusterings (HDBSCAN) are made: by cosine distances of Δb, by NEUPs, and by DDifs, the mean quotients of the
    client's and the global model's outputs on random inputs:

    .. math:: \mathrm{DDif}_{ic} = \frac1S \sum_s \frac{p_c(x_s;\, w + U_i)}{p_c(x_s;\, w)}

    The share of clusterings in which two clients are apart is a distance, on which a last clustering is made. A
    cluster stays where less than τ of its clients are suspicious; who is in none goes. Where nobody stays, all do who
    are not suspicious.

    The server shows the rule its network's outputs (in a run: always; in Python: `aggregate(…, predict=…)`). Without
    them there are two clusterings instead of three. The output layer is the last weight matrix of `layout` with the
    bias behind it; without a layout the last 1,000 values are taken for biases. A binary model with one output has
    C = 1: TE and NEUP then say nothing, and only DDifs and biases count.

    Rieger, Nguyen, Miettinen, Sadeghi, "DeepSight: Mitigating Backdoor Attacks in Federated Learning Through Deep
    Model Inspection", NDSS 2022.

    >>> import torch
    >>> from wardround import Layout, Updates, aggregators
    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = torch.randn(88, generator=generator) + 0.1 * torch.randn(8, 88, generator=generator)
    >>> rows[6:] = torch.nn.functional.one_hot(torch.tensor(83), 88) * 9.0  # two clients that train one label
    >>> sent = Updates(rows, layout=Layout(("w", "b"), ((8, 10), (8,))))
    >>> aggregators.create("deepsight").aggregate(sent, global_weights=torch.zeros(88)).flags.tolist()
    [False, False, False, False, False, False, True, True]
    """

    needs_global_weights = True
    uses_predictions = True

    class Params(Parameters):
        tau: float = Field(1 / 3, gt=0, le=1)
        """Share of suspicious clients from which a cluster is left out."""
        threshold: float = Field(0.01, ge=0, le=1)
        """NEUPs above this share of the greatest (or above 1/C of it, if that is more) count as exceeding."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        norms = updates.norms
        energies, biases = output_layer(updates)
        neups = energies.square() / energies.square().sum(1, keepdim=True).clamp(min=1e-300)
        factor = max(self.params.threshold, 1 / neups.shape[1])
        exceedings = (neups > factor * neups.amax(1, keepdim=True)).sum(1).double()
        suspicious = exceedings <= exceedings.quantile(0.5) / 2
        order = name_order(updates)
        apart = [_apart(_cosine_distances(biases[order])), _apart(_euclidean(neups[order]))]
        if context.predict is not None and context.global_weights is not None:
            differences = self._division_differences(updates, context)
            apart.append(_apart(_euclidean(differences[order])))
        distances = np.mean(apart, axis=0)
        found = density_clusters(distances, 2, min(MIN_SAMPLES, len(updates)), allow_single_cluster=True)
        labels, scores = torch.empty(len(updates), dtype=torch.int64), torch.empty(len(updates)).double()
        labels[order] = torch.from_numpy(found).long()
        scores[order] = torch.from_numpy(distances.sum(1)) / max(len(updates) - 1, 1)
        kept = self._accepted(labels, suspicious)
        median = float(norms.quantile(0.5))
        scale = clip_scale(norms, median)
        delta, weights = mean_of(kept, context.measurements, scale)
        columns = {"norm": norms, "clip_scale": scale, "exceedings": exceedings}
        return Aggregation(delta, weights=weights, scores=scores, flags=~kept, columns=columns)

    def _accepted(self, labels: Tensor, suspicious: Tensor) -> Tensor:
        kept = torch.zeros_like(suspicious)
        for label in labels.unique().tolist():
            members = labels == label
            if label >= 0 and float(suspicious[members].double().mean()) < self.params.tau:
                kept |= members
        if not bool(kept.any()):
            kept = ~suspicious
        return kept if bool(kept.any()) else torch.ones_like(suspicious)

    def _division_differences(self, updates: Updates, context: Context) -> Tensor:
        """N × C mean quotients of outputs on random inputs."""
        assert context.predict is not None
        assert context.global_weights is not None
        own = context.predict(context.global_weights).double()
        quotients = []
        for row in updates.matrix:
            theirs = context.predict(context.global_weights + row.to(context.global_weights.dtype)).double()
            quotients.append((theirs / (own + 1e-6)).mean(0))
        return torch.stack(quotients).nan_to_num(0.0, 1e6, -1e6).clamp(-1e6, 1e6)


def output_layer(updates: Updates) -> tuple[Tensor, Tensor]:
    """What the output layers learnt.

    Returns:
        N × C energies of the units, and N × C changes of their biases, both over the greatest of each client.
    """
    layer = None if updates.layout is None else _last_layer(updates.layout)
    rows = updates.matrix
    if layer is None:
        biases = rows[:, -WITHOUT_LAYOUT:].double()  # no second matrix
        energies = biases.abs()
    else:
        weight, bias, units = layer
        matrices = rows[:, weight].double().reshape(len(rows), units, -1)
        biases = rows[:, bias].double() if bias is not None else matrices.mean(2)
        energies = matrices.abs().sum(2) + (biases.abs() if bias is not None else 0.0)
    return _scaled(energies), _scaled(biases)


def _scaled(values: Tensor) -> Tensor:
    """Each line over its greatest value: their squares are finite then."""
    return values / values.abs().amax(1, keepdim=True).clamp(min=1e-300)


def _last_layer(layout: Layout) -> tuple[slice, slice | None, int] | None:
    """Where the last weight matrix and the bias behind it lie, and how many units it has."""
    places = [i for i, shape in enumerate(layout.shapes) if len(shape) >= 2]
    if not places:
        return None
    last = places[-1]
    units, names = layout.shapes[last][0], layout.names
    behind = last + 1 < len(names) and layout.shapes[last + 1] == (units,)
    bias = layout.slices[names[last + 1]] if behind else None
    return layout.slices[names[last]], bias, units


def _apart(distances: Tensor) -> NDArray[np.float64]:
    """N × N: 1 for two clients in different clusters (who is in none is with the others in none), else 0."""
    labels = density_clusters(
        distances.numpy(), 2, min(MIN_SAMPLES, len(distances)), allow_single_cluster=False
    )
    return np.asarray(labels[:, None] != labels[None, :], dtype=np.float64)


def _euclidean(values: Tensor) -> Tensor:
    return torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")


def _cosine_distances(values: Tensor) -> Tensor:
    norms = values.norm(dim=1, keepdim=True)
    unit = torch.where(norms > 0, values / norms.clamp(min=1e-300), 0.0)
    distances = (1 - unit @ unit.T).clamp(min=0)
    return ((distances + distances.T) / 2).fill_diagonal_(0)
