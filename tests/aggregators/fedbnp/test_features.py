"""The fingerprints against numpy, and what standardising them promises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.aggregators._math.projection import Projection
from wardround.aggregators.fedbnp.features import (
    FEATURES,
    central_rows,
    measure,
    measure_changed,
    standardised,
)


def rows_of(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [7, 70_000])
def test_against_numpy(d):
    matrix, reference = rows_of(5, d), rows_of(1, d, seed=1)[0]
    seen = measure(matrix, reference)
    u, g = matrix.double().numpy(), reference.double().numpy()
    norms = np.linalg.norm(u, axis=1)
    cosines = u @ u.T / np.outer(norms, norms)
    np.testing.assert_allclose(seen.norm, norms, rtol=1e-5)
    np.testing.assert_allclose(seen.cosine, u @ g / norms / np.linalg.norm(g), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen.peer_cosine, (cosines.sum(1) - 1) / 4, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen.sign_consistency, (np.sign(u) == np.sign(g)).mean(1))
    np.testing.assert_allclose(seen.projected, u)


def test_float64_rows_are_measured_in_float64():
    matrix = rows_of(3, 70_000).double()
    np.testing.assert_allclose(measure(matrix).norm, np.linalg.norm(matrix.numpy(), axis=1), rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_rows_beyond_the_squares_of_float32_are_measured_too(scale):
    matrix = rows_of(3, 50)
    seen, far = measure(matrix), measure(matrix * scale)
    torch.testing.assert_close(far.norm, seen.norm * scale, rtol=1e-5, atol=0)
    torch.testing.assert_close(far.peer_cosine, seen.peer_cosine, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [4, 5])
def test_without_a_reference_it_is_the_median(n):
    matrix = rows_of(n, 40_000).double()
    middle = torch.from_numpy(np.median(matrix.numpy(), axis=0))
    one, other = measure(matrix), measure(matrix, middle)
    torch.testing.assert_close(one.cosine, other.cosine)
    torch.testing.assert_close(one.sign_consistency, other.sign_consistency)


def test_measuring_again_only_what_changed_is_measuring_again():
    matrix, reference = rows_of(6, 40_000), rows_of(1, 40_000, seed=1)[0]
    short = Projection(40_000, 128, seed=2)
    before = measure(matrix, reference, short)
    changed = torch.tensor([False, True, False, False, True, False])
    matrix[changed] *= -3
    again, whole = (
        measure_changed(before, matrix, changed, reference, short),
        measure(matrix, reference, short),
    )
    for name in ("norm", "cosine", "peer_cosine", "sign_consistency", "projected"):
        torch.testing.assert_close(getattr(again, name), getattr(whole, name), rtol=1e-4, atol=1e-6)


def test_some_rows_in_another_order():
    matrix, reference = rows_of(6, 50), rows_of(1, 50, seed=1)[0]
    some = measure(matrix, reference, rows=[4, 0, 5])
    copied = measure(matrix[[4, 0, 5]], reference)
    assert torch.equal(some.cosine, copied.cosine)
    assert torch.equal(some.projected, copied.projected)


def test_zero_rows_and_a_zero_reference_give_zero_cosines():
    seen = measure(torch.zeros(3, 4), torch.zeros(4))
    assert seen.cosine.tolist() == seen.peer_cosine.tolist() == [0, 0, 0]
    assert torch.isfinite(standardised(seen.table(torch.zeros(3), torch.zeros(3)))).all()


def test_the_table_has_the_documented_order():
    assert FEATURES == ("vae_error", "cosine", "peer_cosine", "norm", "sign_consistency", "shapley")
    seen = measure(rows_of(3, 9), rows_of(1, 9, 1)[0])
    table = seen.table(torch.full((3,), 7.0), torch.full((3,), 8.0))
    assert torch.equal(table[:, 0], torch.full((3,), 7.0, dtype=torch.float64))
    assert torch.equal(table[:, 1], seen.cosine)
    assert torch.equal(table[:, 2], seen.peer_cosine)
    assert torch.equal(table[:, 3], seen.norm)
    assert torch.equal(table[:, 4], seen.sign_consistency)
    assert torch.equal(table[:, 5], torch.full((3,), 8.0, dtype=torch.float64))


@given(st.integers(0, 1000), st.floats(1e-6, 1e6))
@settings(max_examples=25, deadline=None)
def test_the_scale_of_a_round_does_not_matter(seed, scale):
    table = torch.rand(8, 6, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    scaled = table.clone()
    scaled[:, [0, 3]] *= scale
    torch.testing.assert_close(standardised(scaled), standardised(table), rtol=1e-6, atol=1e-6)


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_standardising_keeps_the_order_within_a_feature(seed):
    table = torch.rand(8, 6, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    assert torch.equal(table.argsort(0), standardised(table).argsort(0))


def test_central_clients_are_not_the_outlying_ones():
    table = torch.rand(10, 6, generator=torch.Generator().manual_seed(0)).double() * 0.01 + 1
    table[[2, 7], 3] = 40
    table[5, 1] = -1
    central = set(central_rows(table).tolist())
    assert len(central) == 5
    assert not central & {2, 5, 7}
    table[:, 0] = torch.arange(10)  # the autoencoder has no say in what it learns from
    assert set(central_rows(table).tolist()) == central


@pytest.mark.parametrize("size", [100_000, 40_000])
def test_a_projection_keeps_lengths_and_angles(size):
    rows = rows_of(4, size)
    rows[1] = rows[0] + 0.5 * rows[1]
    short = Projection(size, 4096, seed=3).apply(rows)
    assert short.shape == (4, 4096)
    whole, part = rows.double() @ rows.double().T, short @ short.T
    assert ((whole - part).abs() / whole[0, 0]).max() < 0.08


def test_a_projection_is_the_same_in_every_round_and_another_for_another_seed():
    rows = rows_of(2, 5000).double()
    assert torch.equal(Projection(5000, 64, 1).apply(rows), Projection(5000, 64, 1).apply(rows))
    assert not torch.equal(Projection(5000, 64, 1).apply(rows), Projection(5000, 64, 2).apply(rows))
    torch.testing.assert_close(
        Projection(5000, 64, 1).apply(rows.sum(0)[None])[0], Projection(5000, 64, 1).apply(rows).sum(0)
    )


def test_short_updates_are_left_as_they_are():
    rows = rows_of(2, 64)
    assert torch.equal(Projection(64, 64, 1).apply(rows), rows.double())
