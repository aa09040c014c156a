import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation

from wardround import Updates, aggregators
from wardround.errors import ParameterError

LOSS = [0.5, 0.6, 0.4, 0.55, 0.45, 1e-5]


def weigh(loss, **params):
    updates = Updates(torch.eye(len(loss)), metrics={"loss": loss})
    return aggregators.create("fedmed", **params).aggregate(updates)


def test_none_by_definition():
    quality = 1 / (np.array(LOSS) + 1e-6)
    np.testing.assert_allclose(weigh(LOSS, clip="none").weights, quality / quality.sum())


def test_percentile_by_definition():
    quality = 1 / (np.array(LOSS) + 1e-6)
    clipped = np.clip(quality, *np.percentile(quality, [5, 95]))
    np.testing.assert_allclose(weigh(LOSS, clip="percentile").weights, clipped / clipped.sum())


def test_mad_by_definition():
    quality = 1 / (np.array(LOSS) + 1e-6)
    reach = 3 * median_abs_deviation(quality, scale="normal")
    clipped = np.clip(quality, max(0, np.median(quality) - reach), np.median(quality) + reach)
    out = weigh(LOSS)
    np.testing.assert_allclose(out.weights, clipped / clipped.sum())
    np.testing.assert_allclose(out.delta, out.weights, rtol=1e-6)  # rows are unit vectors
    np.testing.assert_allclose(out.columns["clipped_quality"], clipped)


@given(
    st.lists(st.floats(1e-3, 10), min_size=3, max_size=12),
    st.floats(0.1, 20),
    st.floats(0, 40),
    st.floats(60, 100),
    st.floats(1e-9, 1),
)
def test_every_parameter_by_definition(loss, k_mad, p_lower, p_upper, epsilon):
    quality = 1 / (np.array(loss) + epsilon)
    middle, reach = np.median(quality), k_mad * median_abs_deviation(quality, scale="normal")
    bounds = {
        "mad": (max(0, middle - reach), middle + reach),
        "percentile": np.percentile(quality, [p_lower, p_upper]),
    }
    params = {"k_mad": k_mad, "p_lower": p_lower, "p_upper": p_upper, "epsilon": epsilon}
    for clip, (low, high) in bounds.items():
        clipped = np.clip(quality, low, high)
        out = weigh(loss, clip=clip, **params)
        np.testing.assert_allclose(out.weights, clipped / clipped.sum(), rtol=1e-4, atol=1e-7)


def test_percentiles_are_in_order():
    with pytest.raises(ParameterError, match=r"p_lower must be below p_upper, got 60\.0 and 40\.0"):
        weigh(LOSS, clip="percentile", p_lower=60, p_upper=40)


def test_mad_of_zero_makes_everyone_equal():
    assert weigh([0.5, 0.5, 0.5, 0.5, 1e-9]).weights.tolist() == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), -1e-6, -5.0])
@pytest.mark.parametrize("clip", ["none", "percentile", "mad"])
def test_a_loss_that_is_no_loss_earns_nothing_and_moves_nobody(lie, clip):
    honest = [0.5, 0.6, 0.4, 0.55]
    out = weigh([*honest, lie], clip=clip)
    assert out.weights[4] == 0
    np.testing.assert_allclose(out.weights[:4], weigh(honest, clip=clip).weights)


def test_no_usable_loss_skips_the_round():
    out = weigh([float("nan")] * 3)
    assert out.skipped == "no client reported a training loss that is finite and not negative"
    assert out.delta.tolist() == [0, 0, 0]


def test_loss_is_asked_for():
    with pytest.raises(ParameterError, match="fedmed needs the clients' training loss"):
        aggregators.create("fedmed").aggregate(Updates(torch.eye(2)))


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=12),
    st.sampled_from(["none", "percentile", "mad"]),
)
def test_whatever_clients_report_weights_are_shares(loss, clip):
    out = weigh(loss, clip=clip)
    assert out.skipped or out.weights.sum().item() == pytest.approx(1)
    assert (out.weights >= 0).all()
