"""What a rule asks of the rows comes from the read that checks them, and is right even when some are dropped."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround import Updates, aggregators
from wardround.aggregators._math import measurements
from wardround.aggregators._math.measurements import MeasurementPlan, Measurements
from wardround.updates import drop_malformed


def random_matrix(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def measure(matrix, plan):
    measured = Measurements(plan)
    kept = drop_malformed(Updates(matrix), measure=measured.read)
    return measured.of(kept.updates), kept


@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf, 1e38])
@pytest.mark.parametrize("d", [40, 70_001])
def test_against_float64_whether_or_not_a_row_is_dropped(bad, d, both_paths):
    matrix, vector = random_matrix(11, d), random_matrix(1, d, seed=1)[0]
    if bad is not None:
        matrix[4, d // 2] = bad
    left = [i for i in range(11) if i != 4 or bad in (None, 1e38)]
    wide, v = matrix[left].double().numpy(), vector.double().numpy()
    result, kept = measure(matrix, MeasurementPlan(dots_with=vector, gram=True, anchor=vector))
    assert kept.rows.tolist() == left
    np.testing.assert_allclose(kept.updates.squared_norms, (wide**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(result.dots, wide @ v, rtol=1e-9, atol=1e-9 * d)
    np.testing.assert_allclose(result.vector_norm, np.linalg.norm(v))
    squared = ((wide[:, None, :200] - wide[None, :, :200]) ** 2).sum(2) if d == 40 else None
    if squared is not None:
        np.testing.assert_allclose(result.squared_distances, squared, rtol=1e-6)
    assert result.geometry.gram.shape == (len(left), len(left))
    assert torch.isfinite(result.geometry.gram).all()


@pytest.mark.slow
@given(
    n=st.integers(1, 14), d=st.integers(1, 300), seed=st.integers(0, 99), bad=st.sampled_from([None, 0, -1])
)
@settings(max_examples=40, deadline=None)
def test_every_shape(n, d, seed, bad):
    matrix, vector = random_matrix(n, d, seed), random_matrix(1, d, seed + 1)[0]
    if bad is not None:
        matrix[bad, d // 2] = torch.nan
    rows = [i for i in range(n) if torch.isfinite(matrix[i]).all()]
    wide = matrix[rows].double()
    trim = (n - 1) // 2
    for plan in (
        MeasurementPlan(),
        MeasurementPlan(dots_with=vector),
        MeasurementPlan(gram=True),
        MeasurementPlan(gram=True, centre=vector),
        MeasurementPlan(trim=trim),
    ):
        result, kept = measure(matrix, plan)
        assert kept.rows.tolist() == rows
        torch.testing.assert_close(kept.updates.squared_norms, wide.square().sum(1), rtol=1e-6, atol=0)
        if not rows:
            continue
        if plan.trim is not None:
            dropped = min(trim, (len(rows) - 1) // 2)
            middle = wide.sort(0).values[dropped : len(rows) - dropped].mean(0)
            torch.testing.assert_close(result.mean_of_middle(dropped), middle.float())
        if plan.dots_with is not None:
            torch.testing.assert_close(result.dots, wide @ vector.double(), rtol=1e-9, atol=1e-9)
        if plan.gram:
            about = wide - result.geometry.centre.double()
            torch.testing.assert_close(result.geometry.gram, about @ about.T, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(
                result.squared_distances, (wide[:, None] - wide[None]).square().sum(2), rtol=1e-5, atol=1e-9
            )


ONE_READ = {"caac": "norms_and_dots", "fltrust": "norms_and_dots"} | dict.fromkeys(
    ("krum", "multi-krum", "bulyan", "rfa", "dos", "centered-clipping"), "norms_and_gram"
)
ONE_READ |= dict.fromkeys(("median", "trimmed-mean"), "norms_and_middle")


@pytest.mark.parametrize("name", ONE_READ)
def test_the_check_and_the_rule_share_one_read(name, make_updates, monkeypatch):
    """In a round without malformed rows nothing is measured twice."""
    reads = []
    for kernel in ("squared_norms", "norms_and_dots", "norms_and_gram", "norms_and_middle", "mean_of_middle"):
        original = getattr(measurements, kernel)

        def counted(*args, kernel=kernel, original=original):
            reads.append(kernel)
            return original(*args)

        monkeypatch.setattr(measurements, kernel, counted)
    rule = aggregators.create(name)
    extra = {"global_weights": torch.ones(40), "root_update": torch.ones(40)}
    rule.aggregate(make_updates(seed=1), 1, **extra)
    reads.clear()
    rule.aggregate(make_updates(seed=2), 2, **extra)
    assert reads == [ONE_READ[name]]


def test_rows_already_measured_are_still_measure():
    updates = Updates(random_matrix(5, 30))
    assert len(updates.norms) == 5  # there is then no reason to measure them again
    vector = torch.ones(30)
    measured = Measurements(MeasurementPlan(dots_with=vector))
    kept = drop_malformed(updates, measure=measured.read)
    torch.testing.assert_close(measured.of(kept.updates).dots, updates.matrix.double().sum(1))


def test_a_vector_that_does_not_fit_is_an_error_when_it_is_asked_for():
    result, _ = measure(random_matrix(5, 30), MeasurementPlan(dots_with=torch.ones(29)))
    with pytest.raises(ValueError, match="no dot product with rows of length 30"):
        _ = result.dots
    result, _ = measure(random_matrix(5, 30), MeasurementPlan(gram=True, anchor=torch.ones(29)))
    with pytest.raises(ValueError, match="anchor has shape"):
        _ = result.geometry
    with pytest.raises(ValueError, match="dots_with"):
        _ = result.dots
    with pytest.raises(ValueError, match="call of"):
        _ = Measurements().updates


def test_cosines_of_nothing():
    result, _ = measure(
        torch.tensor([[0.0, 0.0], [3.0, 4.0]]), MeasurementPlan(dots_with=torch.tensor([0.0, 2.0]))
    )
    assert result.cosines(otherwise=7.0).tolist() == pytest.approx([7.0, 0.8])
