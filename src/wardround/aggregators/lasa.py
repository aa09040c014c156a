"""LASA: clip, sparsify, and let every layer choose whom it listens to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators.base import Aggregator, Context, Parameters, register
from wardround.aggregators.kernels import weighted_sum
from wardround.updates import Aggregation, Layout, Updates

CHUNK = 8_192
"""Columns worked on at a time, so that the sparsified values never need a second matrix."""


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

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        norms = updates.norms
        median = norms.quantile(0.5)
        scale = torch.where(norms > median, median / norms, 1.0)
        tensors = _tensors(updates.layout, updates.dimension)
        thresholds = self._thresholds(updates.matrix, tensors)
        delta = torch.empty_like(updates.matrix[0])
        kept = torch.zeros(len(updates), dtype=torch.float64)
        excess = torch.zeros(len(updates), dtype=torch.float64)
        for tensor in tensors:
            limits = thresholds if tensor.sparse else None
            lengths, balances = self._measure(updates.matrix, tensor, limits, scale)
            norm_score = _score(lengths) / self.params.lambda_n
            sign_score = _score(balances) / self.params.lambda_s
            worst = torch.maximum(norm_score, sign_score)
            inside = worst <= 1
            if not bool(inside.any()):
                inside = torch.ones_like(inside)
            kept += inside
            excess += worst
            weights = scale * inside / inside.sum()
            averaged = limits if self.params.values == "sparse" else None
            for columns in tensor.chunks():
                delta[columns] = weighted_sum(_sparsified(updates.matrix[:, columns], averaged), weights)
        count = max(1, len(tensors))
        return Aggregation(
            delta, scores=excess / count, columns={"kept": kept / count, "clip_scale": scale, "norm": norms}
        )

    def _thresholds(self, matrix: Tensor, tensors: list[_Slice]) -> Tensor:
        """Per client the least magnitude that survives; clipping scales a row and does not change its order."""
        weights = [tensor.columns for tensor in tensors if tensor.sparse]
        total = sum(columns.stop - columns.start for columns in weights)
        keep = int(total * (1 - self.params.sparsity))
        limits = torch.zeros(len(matrix), dtype=matrix.dtype, device=matrix.device)
        if keep == total:
            return limits
        for i, row in enumerate(matrix):
            if keep == 0:  # a tensor of one value: nothing survives
                limits[i] = torch.inf
                continue
            magnitudes = torch.cat([row[columns] for columns in weights]).abs_().cpu().numpy()
            magnitudes.partition(total - keep)  # in place: kthvalue would need several times the row
            limits[i] = float(magnitudes[total - keep])
        return limits

    def _measure(
        self, matrix: Tensor, tensor: _Slice, limits: Tensor | None, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Norm and sign balance of the clipped and sparsified tensor, per client, in float64."""
        squared = torch.zeros(len(matrix), dtype=torch.float64)
        balance, present = torch.zeros_like(squared), torch.zeros_like(squared)
        for columns in tensor.chunks():
            values = _sparsified(matrix[:, columns], limits)
            squared += torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).square().cpu()
            signs = values.sign()
            balance += signs.sum(1, dtype=torch.float64).cpu()
            present += signs.count_nonzero(1).cpu()
        ratio = torch.where(present > 0, balance / present, 0.0)
        return squared.sqrt() * scale, 0.5 * (1 + (1 - self.params.sparsity) * ratio)


@dataclass(frozen=True)
class _Slice:
    """The columns of one tensor, and whether it is a weight tensor that is sparsified."""

    columns: slice
    sparse: bool

    def chunks(self) -> Iterator[slice]:
        for start in range(self.columns.start, self.columns.stop, CHUNK):
            yield slice(start, min(start + CHUNK, self.columns.stop))


def _tensors(layout: Layout | None, dimension: int) -> list[_Slice]:
    if layout is None:
        return [_Slice(slice(0, dimension), sparse=True)]
    return [
        _Slice(layout.slices[name], sparse=len(shape) >= 2)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    ]


def _sparsified(values: Tensor, limits: Tensor | None) -> Tensor:
    return values if limits is None else torch.where(values.abs() >= limits[:, None], values, 0.0)


def _score(values: Tensor) -> Tensor:
    """|x − median|/std over the clients, 0 where they do not differ."""
    spread = values.std(correction=0)
    deviation = (values - values.quantile(0.5)).abs()
    return deviation / spread if spread > 0 else torch.zeros_like(values)
