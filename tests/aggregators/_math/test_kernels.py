import numpy as np
import pytest
import torch

from wardround import Updates
from wardround.aggregators._math import kernels
from wardround.aggregators._math.kernels import (
    centred_gram,
    distances_and_replace,
    dots_with_two,
    norm,
    row_dots,
    squared_distances,
    squared_norms,
    weighted_sum,
)


def random_matrix(n, d, dtype=torch.float32, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def distances_in_float64(matrix):
    wide = matrix.double().numpy()
    return np.array([[np.sum((a - b) ** 2) for b in wide] for a in wide])


SHAPES = [(1, 20), (2, 3), (5, 16), (7, 1000), (20, 70_001)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_against_float64(n, d, dtype, both_paths):
    matrix = random_matrix(n, d, dtype)
    wide = matrix.double().numpy()
    weights = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    vector, centre = random_matrix(1, d, dtype, 2)[0], random_matrix(1, d, dtype, 3)[0]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(
        weighted_sum(matrix, weights), weights.numpy() @ wide, rtol=0, atol=10 * tolerance
    )
    np.testing.assert_allclose(squared_norms(matrix), (wide**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(norm(vector), np.linalg.norm(vector.double()), rtol=1e-6)
    size = np.sqrt(d)
    np.testing.assert_allclose(row_dots(matrix, vector), wide @ vector.double().numpy(), atol=1e-11 * size)
    about, base = wide - centre.double().numpy(), vector.double().numpy() + centre.double().numpy()
    geometry = centred_gram(Updates(matrix), centre, anchor=vector)
    np.testing.assert_allclose(geometry.projections, about @ base, atol=1e-11 * size)
    np.testing.assert_allclose(geometry.base_squared, base @ base)
    np.testing.assert_allclose(geometry.gram, about @ about.T, atol=1e-7 * d)
    np.testing.assert_allclose(squared_distances(Updates(matrix)), distances_in_float64(matrix), rtol=1e-6)


def test_distances_survive_a_row_that_is_far_away(both_paths):
    """About the mean, which such a row drags along, the others' distances would drown in float32."""
    matrix = random_matrix(9, 70_000) * 1e-3
    matrix[4] *= 1e9
    found = squared_distances(Updates(matrix)).numpy()
    others = [i for i in range(9) if i != 4]
    expected = distances_in_float64(matrix[others])
    np.testing.assert_allclose(found[np.ix_(others, others)], expected, rtol=1e-6)


@pytest.mark.parametrize("offset", [1.0, 30.0, 1e6])
def test_attackers_who_hold_the_sampled_rows_do_not_hold_the_distances(offset, both_paths):
    """They are 9 of 21, but all of those that the quick centre looks at."""
    matrix = random_matrix(21, 70_000)
    attackers = torch.linspace(0, 20, kernels.SAMPLE).round().long()
    matrix[attackers] += offset * random_matrix(1, 70_000, seed=1)
    updates = Updates(matrix)
    expected = distances_in_float64(matrix)
    np.testing.assert_allclose(squared_distances(updates), expected, rtol=1e-6)
    if offset > 1:
        torch.testing.assert_close(centred_gram(updates).centre, matrix.quantile(0.5, dim=0))


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match="rows of length 20"):
        row_dots(random_matrix(3, 20), torch.ones(19))
    with pytest.raises(ValueError, match="centre has shape"):
        centred_gram(Updates(random_matrix(3, 20)), centre=torch.ones(19))
    with pytest.raises(ValueError, match="call drop_malformed first"):
        centred_gram(Updates(torch.full((3, 20), torch.nan)))


def test_colluders_close_to_each_other_and_far_from_the_rest(both_paths):
    matrix = random_matrix(9, 70_000)
    matrix[5:] = 1e4 + matrix[5:] * 1e-1
    np.testing.assert_allclose(squared_distances(Updates(matrix)), distances_in_float64(matrix), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15, 1e25])
def test_rows_whose_squares_do_not_fit_float32(scale, both_paths):
    matrix = random_matrix(6, 70_000) * scale
    updates = Updates(matrix)
    expected = distances_in_float64(matrix)
    np.testing.assert_allclose(squared_distances(updates), expected, rtol=1e-6)
    np.testing.assert_allclose(squared_norms(matrix), updates.squared_norms, rtol=1e-6)
    assert (updates.squared_norms > 0).all()


def test_a_tiny_weight_brings_a_huge_row_down_to_size(both_paths):
    matrix = torch.full((2, 40), 1e35)
    out = weighted_sum(matrix, torch.tensor([1e-39, 0.0], dtype=torch.float64))
    torch.testing.assert_close(out, torch.full((40,), 1e-4))


def test_equal_rows_have_equal_distances_wherever_they_stand(both_paths):
    pytest.importorskip("numba")
    matrix = random_matrix(7, 70_000)
    matrix[6] = matrix[1]
    squared = squared_distances(Updates(matrix))
    assert squared[1, 6] == 0
    if both_paths == "compiled":
        assert torch.equal(squared[1], squared[6][[0, 6, 2, 3, 4, 5, 1]])


def test_a_combination_is_known_by_its_coefficients():
    matrix = random_matrix(6, 50, torch.float64)
    geometry = centred_gram(Updates(matrix))
    a = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.1, 0.2], dtype=torch.float64)
    z = a @ matrix
    expected = (matrix - z).square().sum(1)
    torch.testing.assert_close(geometry.squared_distances_to(a), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_squared_norms_give_away_what_is_not_finite(bad, both_paths):
    matrix = random_matrix(5, 70_000)
    matrix[2, 69_999] = bad
    assert torch.isfinite(squared_norms(matrix)).tolist() == [True, True, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("d", [3000, 70_001])
@pytest.mark.parametrize("n", [128, 131])
def test_distances_of_many_clients(n, d, both_paths):
    """In float64 and in float32, with colluders near each other and attackers far away."""
    matrix = random_matrix(n, d)
    matrix[:20] = 30 + 1e-2 * matrix[:20]
    matrix[20] *= 1e9
    wide = matrix.double()
    some = torch.tensor([0, 1, 19, 20, 21, 60, n - 1])
    expected = torch.stack([(wide - wide[i]).square().sum(1) for i in some])
    torch.testing.assert_close(squared_distances(Updates(matrix))[some], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_products_with_two_vectors_and_distances_from_predictions(n, d, dtype, both_paths):
    matrix, past = random_matrix(n, d, dtype), random_matrix(n, d, dtype, 1)
    v, w = random_matrix(2, d, dtype, 2)
    wide = [x.double().numpy() for x in (matrix, past, v, w)]
    for found, vector in zip(dots_with_two(matrix, v, w), wide[2:], strict=True):
        np.testing.assert_allclose(found, wide[0] @ vector, atol=1e-11 * np.sqrt(d))
    expected = ((wide[0] - wide[1] - wide[2]) ** 2).sum(1)
    weights = torch.rand(len(matrix), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    squared, combined = distances_and_replace(past, matrix, v, weights)
    np.testing.assert_allclose(squared, expected, rtol=1e-11)
    assert torch.equal(past, matrix)
    assert torch.equal(combined, weighted_sum(matrix, weights))
    squared, combined = distances_and_replace(past.zero_(), matrix, None, weights)
    assert not squared.any()
    assert torch.equal(past, matrix)
    assert torch.equal(combined, weighted_sum(matrix, weights))
