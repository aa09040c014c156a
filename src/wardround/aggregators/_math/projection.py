"""Long updates made short: a sparse random projection that is the same in every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from wardround.aggregators._math.compiled import loops_for
from wardround.randomness import torch_generator

__all__ = ["Projection"]


@dataclass(frozen=True)
class Projection:
    r"""Each of the D coordinates is added, with a random sign, to one of `dimension` sums.

    .. math:: (Px)_b = \sum_{j : h(j) = b} s_j x_j, \qquad
        \mathbb{E}\,\langle Px, Py\rangle = \langle x, y\rangle

    One nonzero per coordinate: a pass over the update, no matrix. Bucket h and sign s are drawn from the seed for each
    range of columns; those of a few ranges are kept, nothing of length D. An update that is short enough is left as
    it is. The compiled loop adds in the same order as torch does: both give the same to the last bit.

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
        """Length of a projected update."""
        return min(self.size, self.dimension)

    def empty(self, rows: int) -> Tensor:
        """Make outputs × rows zeros in float64, to be filled by `add` range by range."""
        return torch.zeros(self.outputs, rows, dtype=torch.float64)

    def add(self, block: Tensor, start: int, into: Tensor) -> None:
        """Add the projection of some columns.

        Args:
            block: rows × columns, no wider than `chunk`: columns `start`, `start` + 1, … of the updates.
            start: A multiple of `chunk`.
            into: outputs × rows in float64; added to.
        """
        columns = block.shape[1]
        if self.size <= self.dimension:
            into[start : start + columns] = block.T
            return
        bucket, sign = _drawn(self.seed, start // self.chunk, columns, self.dimension)
        loops = loops_for(block[:1])  # rows need not follow each other in memory
        if loops is None:
            into.index_add_(0, bucket, (block.T * sign[:, None].to(block.dtype)).double())
        else:
            loops.add_signed(*(part.numpy() for part in (block, bucket, sign, into)))

    def apply(self, matrix: Tensor) -> Tensor:
        """Project rows × D values: rows × outputs, in float64."""
        sums = self.empty(len(matrix))
        for start in range(0, self.size, self.chunk):
            self.add(matrix[:, start : start + self.chunk], start, sums)
        return sums.T.contiguous()


@lru_cache(maxsize=8)
def _drawn(seed: int, part: int, columns: int, dimension: int) -> tuple[Tensor, Tensor]:
    """Bucket (int64) and sign (int8, ±1) of each column of a range."""
    generator = torch_generator(seed, "projection", part)
    bucket = torch.randint(dimension, (columns,), generator=generator)
    return bucket, torch.randint(2, (columns, 1), generator=generator).mul_(2).sub_(1).flatten().to(
        torch.int8
    )
