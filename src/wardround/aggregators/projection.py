"""Long updates made short: a sparse random projection that is the same in every round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.randomness import torch_generator

__all__ = ["Projection"]


@dataclass(frozen=True)
class Projection:
    r"""Each of the D coordinates is added, with a random sign, to one of `dimension` sums.

    .. math:: (Px)_b = \sum_{j : h(j) = b} s_j x_j, \qquad
        \mathbb{E}\,\langle Px, Py\rangle = \langle x, y\rangle

    One nonzero a coordinate: a pass over the update, no matrix. Bucket h and sign s are drawn anew from the
    seed for each range of columns, so that nothing of length D has to be kept. An update that is short enough
    is left as it is.

    Charikar, Chen & Farach-Colton, "Finding frequent items in data streams", ICALP 2002; Weinberger et al.,
    "Feature hashing for large scale multitask learning", ICML 2009.

    >>> short = Projection(size=10_000, dimension=64, seed=0)
    >>> short.outputs, short.apply(torch.ones(2, 10_000)).shape
    (64, torch.Size([2, 64]))
    >>> Projection(size=10, dimension=64, seed=0).outputs
    10
    """

    size: int
    """D."""
    dimension: int
    """Dimensions above which an update is projected, and to which."""
    seed: int
    chunk: int = 32_768
    """Columns drawn at a time."""

    @property
    def outputs(self) -> int:
        """How long a projected update is."""
        return min(self.size, self.dimension)

    def empty(self, rows: int) -> Tensor:
        """outputs × rows zeros, to be filled by `add` range by range."""
        return torch.zeros(self.outputs, rows, dtype=torch.float64)

    def add(self, block: Tensor, start: int, into: Tensor) -> None:
        """Add columns `start` … of some rows (rows × columns) to `into` (outputs × rows).

        `start` must be a multiple of `chunk`, and the block no wider than it.
        """
        columns = block.shape[1]
        if self.size <= self.dimension:
            into[start : start + columns] = block.T
            return
        generator = torch_generator(self.seed, "projection", start // self.chunk)
        bucket = torch.randint(self.dimension, (columns,), generator=generator)
        sign = torch.randint(2, (columns, 1), generator=generator).mul_(2).sub_(1)
        into.index_add_(0, bucket, (block.T * sign.to(block.dtype)).double())

    def apply(self, matrix: Tensor) -> Tensor:
        """All rows projected: rows × outputs, in float64."""
        sums = self.empty(len(matrix))
        for start in range(0, self.size, self.chunk):
            self.add(matrix[:, start : start + self.chunk], start, sums)
        return sums.T.contiguous()
