"""Operations on matrices of updates that attacks share: moments over clients, distances, and crafting row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from wardround.updates import row_squared_norms

__all__ = ["column_chunks", "craft_rows", "mean_of", "moments", "norms_of", "squared_distances"]

CHUNK = 16_384  # columns at a time: twenty float32 rows of that length stay in a core's cache
SMALL = 200_000  # below so many random numbers, starting threads costs more than it saves


def column_chunks(d: int, chunk: int = CHUNK) -> Iterator[slice]:
    """The columns 0…d−1 in slices of at most `chunk`, so that a slice of all rows stays in the cache."""
    return (slice(a, min(a + chunk, d)) for a in range(0, d, chunk))


def mean_of(matrix: Tensor) -> Tensor:
    """N × D rows → their mean, D values."""
    return matrix.mean(0)


def norms_of(matrix: Tensor) -> Tensor:
    """N × D rows → their N Euclidean norms, in float64."""
    return row_squared_norms(matrix).sqrt()


def moments(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean and unbiased standard deviation over clients, coordinate by coordinate.

    Two passes (mean, then squared deviations from it), so that nothing cancels, but chunk by chunk, so
    that the second pass finds its data in the cache.

    Args:
        matrix: N × D rows.

    Returns:
        Mean and standard deviation, D values each; the latter is 0 for one client.

    >>> mean, std = moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> mean.tolist(), std.tolist()
    ([2.0, 5.0], [1.4142135381698608, 0.0])
    """
    n, d = matrix.shape
    mean, squares = torch.empty(d, dtype=matrix.dtype), torch.empty(d, dtype=matrix.dtype)
    shares, ones = torch.full((n,), 1 / n, dtype=matrix.dtype), torch.ones(n, dtype=matrix.dtype)
    buffer = torch.empty(n, min(CHUNK, d), dtype=matrix.dtype)
    for part in column_chunks(d):
        rows = matrix[:, part]
        torch.mv(rows.T, shares, out=mean[part])
        space = buffer if rows.shape[1] == buffer.shape[1] else torch.empty_like(rows)
        deviations = torch.sub(rows, mean[part], out=space).square_()
        torch.mv(deviations.T, ones, out=squares[part])
    return mean, squares.div_(max(n - 1, 1)).sqrt_()


def squared_distances(matrix: Tensor) -> Tensor:
    """Compute ‖U_i − U_j‖² for all pairs of N × D rows.

    By the Gram matrix of the centred rows: centring takes away the common part that would cancel, and
    float64 sums over the chunks keep what is left.

    Returns:
        N × N squared distances, in float64.
    """
    n = len(matrix)
    gram = torch.zeros(n, n, dtype=torch.float64)
    for part in column_chunks(matrix.shape[1]):
        centred = matrix[:, part] - matrix[:, part].mean(0)
        gram += centred @ centred.T
    return distances_from_gram(gram)


def distances_from_gram(gram: Tensor) -> Tensor:
    """N × N inner products → N × N squared distances ‖a_i‖² + ‖a_j‖² − 2⟨a_i, a_j⟩, 0 on the diagonal."""
    squares = gram.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0).fill_diagonal_(0)


def craft_rows(own: Tensor, row: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Make a new B × D matrix whose i-th row is `row(i, own[i])`, several rows at a time.

    Drawing random numbers is the cost of the noisy attacks and runs on one core; every row has a
    generator of its own, so the number of threads changes nothing but the time.

    Args:
        own: B × D honest rows.
        row: Place and honest row (D values) → crafted row (D values).
    """
    crafted = torch.empty_like(own)

    def work(i: int) -> None:
        crafted[i] = row(i, own[i])

    workers = min(len(own), torch.get_num_threads())
    if workers < 2 or own.numel() < SMALL:
        for i in range(len(own)):
            work(i)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(len(own))))
    return crafted
