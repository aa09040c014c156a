"""Mixtures of rows: their values, and order statistics of them that never have all values at once."""

import numpy as np
import pytest
import torch

from wardround.aggregators._math import mixing
from wardround.aggregators._math.mixing import for_each_mixed_block, mix_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("made", "n"), [(1, 3), (4, 4), (7, 20), (10, 5), (150, 150)])
@pytest.mark.parametrize("d", [5, 127, 128, 1000])
def test_mixtures_are_the_matrix_product(made, n, d, dtype, both_paths, monkeypatch):
    monkeypatch.setattr(mixing, "MIXED_VALUES", 300 * made)  # several blocks, the last of which is short
    generator = torch.Generator().manual_seed(made * d)
    matrix = torch.randn(n, d, generator=generator).to(dtype)
    coefficients = torch.randn(made, n, generator=generator).double() / n**0.5
    expected = coefficients.numpy() @ matrix.double().numpy()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(mix_rows(matrix, coefficients), expected, atol=tolerance)
    seen = np.zeros(d, dtype=bool)
    for_each_mixed_block(
        matrix,
        coefficients,
        lambda start, mixed: seen.__setitem__(slice(start, start + mixed.shape[1]), True),
    )
    assert seen.all()


def test_a_tiny_coefficient_is_not_lost(both_paths):
    mixed = mix_rows(torch.full((2, 200), 1e35), torch.tensor([[1e-39, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(mixed, torch.full((1, 200), 1e-4))
