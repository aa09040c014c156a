import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wardround.aggregators._math.copod import copod_scores


def pyod_scores(features):
    """Of PyOD, which is imported where it is needed only: it takes as long as all of these tests."""
    return pytest.importorskip("pyod.models.copod").COPOD().fit(features).decision_scores_


@pytest.mark.parametrize("seed", range(5))
def test_against_pyod(seed):
    rng = np.random.default_rng(seed)
    features = rng.exponential(size=(20, 8)) * rng.choice([-1, 1], size=8)
    np.testing.assert_allclose(copod_scores(features), pyod_scores(features), rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(arrays("float64", (9, 4), elements=st.integers(-3, 3).map(float)))
def test_against_pyod_with_ties(features):
    features = features + np.arange(9)[:, None] ** 2 // 30  # no constant column: PyOD divides by zero there
    expected = pyod_scores(features)
    symmetric = (
        np.abs(((features - features.mean(0)) ** 3).mean(0)) < 1e-9
    )  # the sign is a matter of rounding
    if not symmetric.any():
        np.testing.assert_allclose(copod_scores(features), expected, rtol=1e-12)


def test_a_constant_column_tells_nothing():
    features = np.random.default_rng(0).normal(size=(10, 3))
    with_constant = np.column_stack([features, np.full(10, 0.1)])
    np.testing.assert_allclose(copod_scores(with_constant), copod_scores(features))
