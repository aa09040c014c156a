"""LASA: clip, sparsify, and let every layer choose whom it listens to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.sparsified import (
    Piece,
    kept_statistics,
    magnitude_limits,
    pieces_of,
    sum_kept,
)
from wardround.aggregators.base import Aggregator, Context, Parameters, register
from wardround.updates import Aggregation, Layout, Updates


@register("lasa")
class Lasa(Aggregator):
    r"""Layer-adaptive sparsified aggregation.

    1. Clip every row to the median norm of the round: :math:`\min(1, \mathrm{median}(n)/n_i)`.
    2. Over all tensors of two or more dimensions together, keep the (1 − s) share of a row's values that is largest
       in magnitude and zero the rest; vectors (biases, normalisation) are left alone.
    3. Per tensor and client: the norm a and the sign balance
       :math:`p = \tfrac12\big(1 + (1-s)\sum\mathrm{sign}/\sum|\mathrm{sign}|\big)` of the sparsified tensor.
    4. A client stays in the tensor's set while :math:`|x - \mathrm{median}|/\mathrm{std} \le \lambda` for
       both (:math:`\lambda_n`, :math:`\lambda_s`); an empty set means all.
    5. The tensor's aggregate is the mean over the set, of the sparsified values or (`values="dense"`) of the
       clipped ones.

    Tensors are read from `updates.layout`; without one the whole row counts as a single weight tensor.
    Different tensors may listen to different clients, so there is no share per client: the column `kept`
    is the share of tensors a client stayed in, the score its mean excess over the thresholds.

    Xu et al., "Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive Sparsified Model
    Aggregation", WACV 2025.

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [-8.0, -9.0]]))
    >>> out = aggregators.create("lasa", sparsity=0.0).aggregate(sent)
    >>> out.delta, out.columns["kept"].tolist()
    (tensor([1.2500, 1.7500]), [1.0, 1.0, 1.0, 1.0, 0.0])
    """

    class Params(Parameters):
        sparsity: float = Field(0.3, ge=0, lt=1)
        """s, the share of a row's weight values that is zeroed."""
        lambda_n: float = Field(1.0, gt=0)
        """Threshold of the norm score; 2.0 suits easy tasks."""
        lambda_s: float = Field(1.0, gt=0)
        """Threshold of the sign score."""
        values: Literal["sparse", "dense"] = "sparse"
        """What is averaged in the end."""

    params: Params

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        norms = updates.norms
        median = norms.quantile(0.5)
        scale = torch.where(norms > median, median / norms, 1.0)
        matrix, tensors = updates.matrix, _tensors(updates.layout, updates.dimension)
        pieces = pieces_of([tensor.columns for tensor in tensors])
        limits = self._limits(matrix, tensors, pieces)
        squared, plus, minus = kept_statistics(matrix, pieces, limits)
        present = plus + minus
        ratio = torch.where(present > 0, (plus - minus) / present, 0.0)
        lengths, balances = squared.sqrt() * scale, 0.5 * (1 + (1 - self.params.sparsity) * ratio)
        excess = torch.maximum(
            _scores(lengths) / self.params.lambda_n, _scores(balances) / self.params.lambda_s
        )
        inside = excess <= 1
        inside |= ~inside.any(1, keepdim=True)  # an empty set means all
        weights = scale * inside / inside.sum(1, keepdim=True)
        averaged = limits if self.params.values == "sparse" else torch.zeros_like(limits)
        delta = sum_kept(matrix, pieces, averaged, weights)
        columns = {"kept": inside.double().mean(0), "clip_scale": scale, "norm": norms}
        return Aggregation(delta, scores=excess.mean(0), columns=columns)

    def _limits(self, matrix: Tensor, tensors: list[_Slice], pieces: list[Piece]) -> Tensor:
        """Per tensor and client the least magnitude that survives; clipping does not change a row's order."""
        sparse = torch.tensor([tensor.sparse for tensor in tensors])
        weights = [piece for piece in pieces if tensors[piece.tensor].sparse]
        total = sum(piece.stop - piece.start for piece in weights)
        keep = int(total * (1 - self.params.sparsity))
        limits = matrix.new_zeros(len(tensors), len(matrix))
        if weights:
            limits[sparse.to(matrix.device)] = magnitude_limits(matrix, weights, keep)
        return limits


@dataclass(frozen=True)
class _Slice:
    """The columns of one tensor, and whether it is a weight tensor that is sparsified."""

    columns: slice
    sparse: bool


def _tensors(layout: Layout | None, dimension: int) -> list[_Slice]:
    if layout is None:
        return [_Slice(slice(0, dimension), sparse=True)]
    return [
        _Slice(layout.slices[name], sparse=len(shape) >= 2)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]


def _scores(values: Tensor) -> Tensor:
    """Per tensor |x − median|/std over the clients, 0 where they do not differ."""
    spread = values.std(1, correction=0, keepdim=True)
    deviation = (values - values.quantile(0.5, dim=1, keepdim=True)).abs()
    return torch.where(spread > 0, deviation / spread, 0.0)
