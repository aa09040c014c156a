"""AUROC against its definition over pairs; threshold and calibration against scikit-learn and by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from wardround.metrics import (
    auroc,
    average_precision,
    best_f1_threshold,
    calibration_bins,
    expected_calibration_error,
)

VALUES = st.one_of(st.integers(-3, 3).map(float), st.sampled_from([math.inf, -math.inf, math.nan]))


def over_pairs(scores, positive):
    pairs = [
        (high > low) + 0.5 * (high == low)
        for high in (s for s, p in zip(scores, positive, strict=True) if p)
        for low in (s for s, p in zip(scores, positive, strict=True) if not p)
    ]
    return sum(pairs) / len(pairs) if pairs else math.nan


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=12))
def test_it_is_the_share_of_pairs_in_order_to_the_last_bit(samples):
    one, other, positive = (list(column) for column in zip(*samples, strict=True))
    areas = auroc(torch.tensor([one, other], dtype=torch.float64), torch.tensor(positive))
    for area, scores in zip(areas.tolist(), (one, other), strict=True):
        expected = over_pairs(scores, positive)
        assert area == expected or (math.isnan(area) and math.isnan(expected))


def test_it_agrees_with_scikit_learn():
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (3, 50), generator=generator).float()
    labels = torch.rand(50, generator=generator) < 0.3
    for row, area in zip(scores, auroc(scores, labels).tolist(), strict=True):
        assert area == pytest.approx(roc_auc_score(labels.numpy(), row.numpy()))


def test_the_order_of_samples_does_not_matter():
    generator = torch.Generator().manual_seed(1)
    scores, labels = torch.randn(500, generator=generator), torch.rand(500, generator=generator) < 0.2
    order = torch.randperm(500, generator=generator)
    assert auroc(scores, labels) == auroc(scores[order], labels[order])


probabilities = st.lists(
    st.tuples(st.sampled_from([0.0, 1e-9, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0]), st.booleans()),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(probabilities)
def test_average_precision_is_what_scikit_learn_says(samples):
    scores, truth = np.array([s for s, _ in samples]), np.array([t for _, t in samples])
    if truth.any():
        expected = reference.average_precision_score(truth, scores)
        assert average_precision(scores, truth) == pytest.approx(expected)
    else:
        assert math.isnan(average_precision(scores, truth))


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(probabilities)
def test_no_other_threshold_has_a_higher_f1(samples):
    scores, truth = np.array([s for s, _ in samples]), np.array([t for _, t in samples])
    chosen = best_f1_threshold(scores, truth)
    if truth.all() or not truth.any() or not scores.any():
        assert chosen is None
        return
    assert 0 <= chosen < 1
    best = reference.f1_score(truth, scores > chosen)
    for other in [*(scores + 1e-10), *np.maximum(scores - 1e-10, 0.0)]:
        assert best >= reference.f1_score(truth, scores > other, zero_division=0.0) - 1e-12


def test_of_equally_good_thresholds_the_one_nearest_to_a_half_is_taken():
    scores, truth = np.array([0.9, 0.8, 0.45, 0.35]), np.array([True, False, False, True])
    f1 = [reference.f1_score(truth, scores > t) for t in (0.85, 0.2)]
    assert f1[0] == pytest.approx(f1[1])
    assert best_f1_threshold(scores, truth) == pytest.approx(0.175)  # 0.325 from a half, not 0.35


def test_neighbouring_floats_are_told_apart():
    low = 0.3
    high = float(np.nextafter(low, 1.0))
    chosen = best_f1_threshold(np.array([low, high]), np.array([False, True]))
    assert low <= chosen < high


@settings(deadline=None)
@given(probabilities, st.integers(1, 12))
def test_the_calibration_curve_is_scikit_learns(samples, bins):
    scores, truth = np.array([s for s, _ in samples]), np.array([t for _, t in samples])
    observed, predicted = calibration_curve(truth, scores, n_bins=bins)
    curve = calibration_bins(scores, truth, bins)
    assert [one.observed for one in curve] == pytest.approx(observed)
    assert [one.predicted for one in curve] == pytest.approx(predicted)
    assert sum(one.n for one in curve) == len(samples)
    for one in curve:
        inside = (scores > one.low) & (scores <= one.high) | (scores == 0) * (one.low == 0)
        assert one.n == inside.sum()


def test_the_expected_calibration_error_by_hand():
    scores, truth = np.array([0.1, 0.1, 0.9, 0.9]), np.array([0, 1, 1, 1])
    assert expected_calibration_error(calibration_bins(scores, truth)) == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert math.isnan(expected_calibration_error([]))
