"""What becomes of a masked sum: shares of those who are left, and rounds without a sum."""

import numpy as np
import pytest
import torch

from wardround import aggregators
from wardround.privacy.masking import LARGEST_ENTRY, MaskedSum, masking_problem
from wardround.privacy.params import PrivacyParams
from wardround.privacy.protection import Protection
from wardround.updates import Updates

NAMES = ("a", "b", "c", "d")


def settle(summed, rule="fedavg", loss=(0.1, 0.2, 0.3, 0.4)):
    reports = Updates(torch.zeros(4, 1), NAMES, [1, 2, 3, 4], {"loss": list(loss)})
    protection = Protection(PrivacyParams(mode="secure-aggregation"), aggregators.create(rule), None, 2, 0)
    return protection.settle(reports, summed, 1, 2, torch.float32)


def test_those_who_are_left_share_the_weights_in_proportion():
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    total = torch.tensor([0.6, 1.2], dtype=torch.float64)
    result = settle(MaskedSum(weights, total, ("a", "b", "c"), {"d": "it went offline"}))
    assert result.delta.tolist() == pytest.approx([1.0, 2.0])
    assert result.delta.dtype == torch.float32
    assert result.weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])
    assert result.dropped == {"d": "it went offline"}
    assert result.skipped is None


def test_who_was_not_in_the_cohort_is_dropped():
    weights = {"a": 1 / 6, "b": 2 / 6, "c": 3 / 6}
    result = settle(MaskedSum(weights, torch.ones(2, dtype=torch.float64), ("a", "b", "c")))
    assert result.weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])
    assert result.dropped == {"d": "nothing masked"}


@pytest.mark.parametrize("weights", [{"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}, {"a": 0.2, "b": 0.8}, {}])
def test_without_a_sum_the_round_is_skipped(weights):
    result = settle(MaskedSum(weights, reason="too few are left"))
    assert result.skipped == "too few are left"
    assert result.delta.tolist() == [0, 0]
    assert result.weights.tolist() == [0] * 4
    assert set(result.dropped) == set(NAMES) - set(weights)


def test_the_rules_own_reason_comes_first():
    result = settle(MaskedSum(dict.fromkeys(NAMES, 0.0), reason="nothing"), "fedmed", loss=[float("nan")] * 4)
    assert "no client reported a training loss" in result.skipped


def test_asking_for_weights_teaches_the_rule_nothing():
    rule = aggregators.create("fedavg")
    protection = Protection(PrivacyParams(mode="secure-aggregation"), rule, None, 2, 0)
    asked = []
    rule.on_dropped = asked.append
    bad = Updates(torch.tensor([[1.0], [float("nan")], [1.0]]), num_samples=[1, 2, 3])
    assert protection.weigh_reports(1, bad).weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert not asked


def test_what_can_be_masked():
    assert masking_problem(np.array([1.0, -LARGEST_ENTRY])) is None
    assert masking_problem(np.zeros(0)) is None
    for value in (float("nan"), float("inf"), -2 * LARGEST_ENTRY):
        assert "can be masked" in masking_problem(np.array([0.0, value]))


def test_settings_of_ciphers_are_no_part_of_a_masked_run():
    plain = PrivacyParams(mode="secure-aggregation").model_dump()
    assert plain == {"mode": "secure-aggregation", "min_cohort": 3, "max_share": 0.5}
