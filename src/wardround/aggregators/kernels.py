"""The matrix work that rules share. Sums over the D coordinates accumulate in float64."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["row_dots", "weighted_sum"]


def weighted_sum(matrix: Tensor, weights: Tensor) -> Tensor:
    """Σ_i weight_i · U_i: one pass over the matrix, in its own precision."""
    return weights.to(matrix.dtype) @ matrix


def row_dots(matrix: Tensor, vector: Tensor, chunk: int = 16_384) -> Tensor:
    """⟨U_i, v⟩ for every row, chunk by chunk, the chunks summed in float64."""
    vector = vector.to(matrix.dtype)
    total = torch.zeros(len(matrix), dtype=torch.float64)
    for rows, part in zip(matrix.split(chunk, 1), vector.split(chunk), strict=True):
        total += rows @ part
    return total
