"""The shared matrix work against numpy, at sizes around the chunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from wardround.attacks import matrix_operations

CHUNK = matrix_operations.CHUNK
SIZES = [1, 5, CHUNK - 1, CHUNK, CHUNK + 3, 2 * CHUNK]


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(d, dtype):
    matrix = torch.randn(6, d, generator=torch.Generator().manual_seed(d), dtype=dtype) * 0.01 + 3
    mean, std = matrix_operations.moments(matrix)
    exact = matrix.double().numpy()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(mean.numpy(), exact.mean(0), rtol=tolerance)
    # The deviations of values near 3 are known to 3·2⁻²⁴ only: relative to 0.01, some 2e-5.
    np.testing.assert_allclose(
        std.numpy(), exact.std(0, ddof=1), rtol=1e-4 if dtype == torch.float32 else 1e-10
    )


@pytest.mark.parametrize("d", SIZES)
def test_squared_distances_do_not_cancel(d):
    """Rows far from the origin and close to each other: where a plain Gram trick in float32 fails."""
    matrix = 100 + 0.01 * torch.randn(5, d, generator=torch.Generator().manual_seed(d))
    exact = cdist(matrix.double(), matrix.double(), "sqeuclidean")
    np.testing.assert_allclose(
        matrix_operations.squared_distances(matrix).numpy(), exact, rtol=1e-3, atol=1e-9
    )
    assert not matrix_operations.squared_distances(matrix).diagonal().any()


def test_rows_are_crafted_in_place_of_their_own():
    own = torch.arange(300_000.0).reshape(3, -1)
    crafted = matrix_operations.craft_rows(own, lambda i, honest: honest + i)
    torch.testing.assert_close(crafted, own + torch.arange(3.0)[:, None])


def test_an_error_in_a_row_is_not_lost():
    def fail(i, honest):
        raise ValueError(f"row {i}")

    for d in (10, 200_000):
        with pytest.raises(ValueError, match="row"):
            matrix_operations.craft_rows(torch.zeros(3, d), fail)
