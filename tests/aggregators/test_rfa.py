import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from wardround import Updates, aggregators


def total_distance(z, rows, weights):
    return float(weights @ np.linalg.norm(rows - z, axis=1))


@pytest.mark.parametrize("seed", range(3))
def test_no_point_has_a_smaller_weighted_sum_of_distances(seed, make_updates, both_paths):
    """The definition of the geometric median, against a general-purpose minimiser."""
    updates = make_updates(8, 3, seed=seed, dtype=torch.float64)
    updates.matrix[0] += 50
    rows, weights = updates.matrix.numpy(), updates.num_samples.numpy()
    out = aggregators.create("rfa", tolerance=1e-12, iterations=10_000).aggregate(updates)
    best = minimize(total_distance, np.median(rows, axis=0), (rows, weights), method="Nelder-Mead", tol=1e-10)
    assert total_distance(out.delta.numpy(), rows, weights) <= best.fun * (1 + 1e-8)
    np.testing.assert_allclose(out.delta, best.x, atol=1e-3)
    np.testing.assert_allclose(out.scores, np.linalg.norm(rows - out.delta.numpy(), axis=1), atol=1e-9)


def weiszfeld_in_full_space(rows, m, nu=1e-6, iterations=100, tolerance=1e-6):
    rows, m = rows.double().numpy(), m.numpy()
    z = m @ rows / m.sum()
    for _ in range(iterations):
        beta = m / np.maximum(nu, np.linalg.norm(rows - z, axis=1))
        new = beta @ rows / beta.sum()
        moved, z = np.linalg.norm(new - z), new
        if moved <= tolerance * np.linalg.norm(z):
            break
    return z


@pytest.fixture(scope="module")
def weiszfeld_once():
    """The same for both paths: `weiszfeld_in_full_space` by the strength of the attack."""
    found = {}

    def solve(attack, updates):
        if attack not in found:
            found[attack] = weiszfeld_in_full_space(updates.matrix, updates.num_samples)
        return found[attack]

    return solve


@pytest.mark.parametrize("attack", [1.0, -1e6, 1e12])
def test_n_dimensions_are_as_good_as_all_of_them(attack, make_updates, both_paths, weiszfeld_once):
    updates = make_updates(10, 70_000)
    updates.matrix[:3] *= attack
    expected = weiszfeld_once(attack, updates)
    out = aggregators.create("rfa").aggregate(updates)
    error = np.linalg.norm(out.delta.double().numpy() - expected) / np.linalg.norm(expected)
    assert error < 1e-4


def test_a_median_that_is_a_data_point_divides_by_nothing(both_paths):
    rows = torch.tensor([[2.0, 2.0], [0, 0], [4, 0], [0, 4], [4, 4]]).repeat(1, 10)
    out = aggregators.create("rfa").aggregate(Updates(rows))  # the weighted mean is row 0 from the start
    torch.testing.assert_close(out.delta, rows[0])
    assert torch.isfinite(out.weights).all()


def test_who_has_most_of_the_samples_is_the_median_and_the_cap_ends_that():
    rows = torch.tensor([[0.0] * 20, [1.0] * 20, [1.1] * 20, [0.9] * 20])
    liar = Updates(rows, num_samples=[1_000_000, 10, 10, 10])
    assert aggregators.create("rfa").aggregate(liar).delta.abs().max() < 1e-3
    assert (aggregators.create("rfa", sample_cap=1).aggregate(liar).delta > 0.8).all()
