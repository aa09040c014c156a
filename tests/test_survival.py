"""The Cox loss and the C-index, against plain loops that follow their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround import survival

numbers = st.integers(0, 6)


@st.composite
def patients(draw, most=25):
    """Few different times and risks, so that ties of all kinds occur."""
    count = draw(st.integers(1, most))
    times = draw(st.lists(numbers, min_size=count, max_size=count))
    events = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    risks = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    return np.array(times, float), np.array(events), np.array(risks, float)


def plain_c_index(times, events, risks):
    """Every pair, as Harrell defines it."""
    right, pairs = 0.0, 0
    for i in range(len(times)):
        for j in range(len(times)):
            earlier = times[i] < times[j] or (times[i] == times[j] and not events[j])
            if i != j and events[i] and earlier:
                pairs += 1
                right += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
    return (right / pairs if pairs else math.nan), pairs


def plain_cox(times, events, scores):
    """The mean over patients of minus the log partial likelihood, ties as Breslow has them."""
    total = 0.0
    for i in range(len(times)):
        if events[i]:
            at_risk = sum(math.exp(scores[j]) for j in range(len(times)) if times[j] >= times[i])
            total -= scores[i] - math.log(at_risk)
    return total / len(times)


@given(patients())
def test_c_index_is_that_of_all_pairs(data):
    times, events, risks = data
    found = survival.concordance(risks, survival.encode(times, events))
    index, pairs = plain_c_index(times, events, risks)
    assert found.pairs == pairs
    assert found.index == pytest.approx(index, nan_ok=True)


def test_c_index_of_many_patients_is_counted_in_parts(monkeypatch):
    generator = np.random.default_rng(0)
    times, risks = generator.integers(0, 40, 300).astype(float), generator.integers(0, 30, 300).astype(float)
    events = generator.random(300) < 0.5
    whole = survival.concordance(risks, survival.encode(times, events))
    monkeypatch.setattr(survival, "PAIRS_AT_ONCE", 7)
    assert survival.concordance(risks, survival.encode(times, events)) == whole
    assert whole.index == pytest.approx(plain_c_index(times, events, risks)[0])


def test_c_index_knows_its_ends():
    targets = survival.encode(np.array([1.0, 2.0, 3.0]), np.array([True, True, True]))
    assert survival.concordance(np.array([3.0, 2.0, 1.0]), targets).index == 1
    assert survival.concordance(np.array([1.0, 2.0, 3.0]), targets).index == 0
    assert survival.concordance(np.array([1.0, 1.0, 1.0]), targets).index == 0.5
    nobody = survival.concordance(np.array([1.0, 2.0]), np.array([-1.0, -2.0]))
    assert nobody.pairs == 0
    assert math.isnan(nobody.index)
    assert survival.concordance(np.empty(0), np.empty(0)).pairs == 0


@given(patients())
def test_cox_loss_is_that_of_a_plain_loop(data):
    times, events, scores = data
    targets = torch.from_numpy(survival.encode(times, events))
    loss = survival.cox_loss(torch.from_numpy(scores), targets)
    assert float(loss) == pytest.approx(plain_cox(times, events, scores), abs=1e-12)


@settings(max_examples=30)
@given(patients(most=8))
def test_both_gradients_are_that_of_finite_differences(data):
    times, events, scores = data
    targets = torch.from_numpy(survival.encode(times, events))
    moving = torch.from_numpy(scores.copy()).requires_grad_()
    survival.cox_loss(moving, targets).backward()
    written_out = (
        survival.cox_slopes(torch.from_numpy(scores), targets) - torch.from_numpy(events).double()
    ) / len(times)
    step = 1e-5
    for k in range(len(times)):
        up, down = scores.copy(), scores.copy()
        up[k], down[k] = up[k] + step, down[k] - step
        slope = (plain_cox(times, events, up) - plain_cox(times, events, down)) / (2 * step)
        assert float(moving.grad[k]) == pytest.approx(slope, abs=1e-7)
        assert float(written_out[k]) == pytest.approx(slope, abs=1e-7)


def test_several_batches_with_spare_places_at_once():
    """As the vectorised engine lays them out: a batch a row, spare places marked by −∞."""
    targets = torch.tensor([[3.0, -2.0, 1.0, 1.0], [2.0, 4.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    scores = torch.tensor([[0.5, -1.0, 2.0, 0.0], [1.0, 0.0, 7.0, torch.nan]], dtype=torch.float64)
    losses, slopes = survival.cox_losses(scores, targets), survival.cox_slopes(scores, targets)
    for row, count in ((0, 4), (1, 2)):
        own = scores[row, :count], targets[row, :count]
        assert losses[row, :count].tolist() == pytest.approx(survival.cox_losses(*own).tolist())
        assert slopes[row, :count].tolist() == pytest.approx(survival.cox_slopes(*own).tolist())
    assert losses[1, 2:].tolist() == [0, 0]
    assert slopes[1, 2:].tolist() == [0, 0]


def test_large_scores_do_not_overflow():
    scores = torch.tensor([1000.0, 0.0, -1000.0], requires_grad=True)
    targets = torch.tensor([3.0, 2.0, 1.0])
    loss = survival.cox_loss(scores, targets)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1000.0)
    assert torch.isfinite(scores.grad).all()
    assert torch.isfinite(survival.cox_slopes(scores.detach(), targets)).all()


def test_only_the_order_of_times_counts_and_a_time_of_zero_keeps_its_sign():
    targets = torch.tensor([0.0, -0.0, 812.25, -3000.0], dtype=torch.float64)
    assert survival.events_of(targets).tolist() == [True, False, True, False]
    ranked = survival.ranked_times(targets)
    assert ranked.tolist() == [1, -1, 2, -3]
    scores = torch.tensor([0.3, 1.0, -1.0, 0.2], dtype=torch.float64)
    assert torch.equal(survival.cox_losses(scores, ranked), survival.cox_losses(scores, targets))
    assert survival.is_survival(targets)
    assert not survival.is_survival(torch.tensor([0, 1]))
    assert not survival.is_survival(torch.zeros(2, 3))
