"""What a hospital accepts: each bound, on either side of it."""

import math

import numpy as np
import pytest

from wardround.errors import ConfigError
from wardround.flower.config import hospital_from
from wardround.flower.hospital.policy import DpFloor, HospitalPolicy, OrderRefused
from wardround.flower.messages import Note
from wardround.privacy.params import DpParams
from wardround.training.base import TrainingParams

HUGE = pytest.param(10**5000, id="huge")  # more digits than Python writes


def order(weights=None, training=None, policy=None, **head):
    asked = {
        "model": {"name": "mlp"},
        "round": 1,
        "rounds": 100,
        "seed": 0,
        "clients": 5,
        "training": {**TrainingParams().model_dump(), **(training or {})},
        "policy": {"prox_mu": None, "local_batch_norm": False, **(policy or {})},
        **head,
    }
    return Note(asked, {}, {"weights": np.zeros(10, np.float32) if weights is None else np.asarray(weights)})


def check(asked, samples=100, mode="plaintext", cohort=None, **policy):
    HospitalPolicy(**policy).check_training(asked, samples, mode, cohort)


def refused(reason, asked, **options):
    with pytest.raises(OrderRefused, match=reason):
        check(asked, **options)


def test_ordinary_training_is_accepted():
    check(order())
    check(order(), mode="encrypted-caac", cohort=3)
    check(order(training={"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "epochs": 5, "weight_decay": 1e-4}))


def test_models():
    check(order(), models=["mlp", "logistic"])
    refused(r"'mlp' is not in policy\.models \(logistic\)", order(), models=["logistic"])
    for model in (None, {}, "mlp", {"name": None}, {"name": ["mlp"]}, {"name": {}}):
        refused("names no model", order(model=model))


def test_parameters():
    check(order(), max_parameters=10)
    refused("10 parameters, more than policy.max_parameters 9", order(), max_parameters=9)


@pytest.mark.parametrize("lr", [1e-30, 9e-10, 10.5, 1e300])
def test_learning_rates_outside_the_bounds(lr):
    refused(r"policy\.lr is from 1e-09 to 10", order(training={"lr": lr}))


@pytest.mark.parametrize("lr", [1e-9, 1e-3, 10.0])
def test_learning_rates_inside(lr):
    check(order(training={"lr": lr}))


@pytest.mark.parametrize("lr", [0, -1, math.nan, math.inf, "x", None, [1]])
def test_learning_rates_that_are_none(lr):
    refused(r"does not say how to train|policy\.lr", order(training={"lr": lr}))


class TestSchedules:
    """The rate of the round counts, not the one that the order names."""

    def test_cosine_to_its_last_round(self):
        for rounds in (1, 10, 1000):
            for round in (1, (rounds + 1) // 2, rounds):
                check(order(training={"lr": 0.001, "schedule": "cosine"}, round=round, rounds=rounds))

    def test_cosine_beyond_its_end(self):
        """The rate of round rounds + 1 is zero, and then it rises again."""
        refused("round 101 of 100", order(training={"schedule": "cosine"}, round=101, rounds=100))

    def test_steps(self):
        steps = {"schedule": "step", "step_every": 1, "step_factor": 0.1}
        check(order(training={**steps, "lr": 0.001}, round=6))
        refused("a learning rate of 1e-10", order(training={**steps, "lr": 0.001}, round=8))
        refused("a learning rate of 1e-303", order(training={**steps, "step_factor": 1e-300}, round=2))
        check(order(training={**steps, "step_factor": 1e-300}, round=1))  # not yet stepped


def test_epochs():
    check(order(training={"epochs": 50}))
    refused(r"51 epochs; policy\.max_epochs is 50", order(training={"epochs": 51}))
    refused("epochs", order(training={"epochs": 10**30}))


def test_batches():
    check(order(training={"batch_size": 10**6}))
    for size in (2**31, 10**30):
        refused("batches of", order(training={"batch_size": size}))


def test_weight_decay():
    check(order(training={"weight_decay": 0.1}))
    refused("weight decay 0.2; policy.max_weight_decay is 0.1", order(training={"weight_decay": 0.2}))


def test_prox_mu_of_the_rule_and_of_the_training():
    check(order(policy={"prox_mu": 100.0}))
    check(order(training={"prox_mu": 100.0}))
    for asked in (order(policy={"prox_mu": 101.0}), order(training={"prox_mu": 101.0})):
        refused(r"policy\.max_prox_mu is 100", asked)
    for strange in (math.nan, math.inf, -1.0, "1", [1]):
        refused("prox_mu", order(policy={"prox_mu": strange}))


@pytest.mark.parametrize("policy", [None, [], {}, {"prox_mu": None}, {"local_batch_norm": 1}])
def test_an_order_must_say_how_to_train(policy):
    refused("does not say how to train", Note({**order().head, "policy": policy}, {}, order().arrays))
    for training in (None, [], "x", {"lr": 0.1, "wings": 2}):
        asked = Note({**order().head, "training": training}, {}, order().arrays)
        refused("does not say how to train", asked)


@pytest.mark.parametrize("weight", [1.1e4, -1.1e4, math.inf, -math.inf, math.nan])
def test_weights_that_are_huge_or_no_numbers(weight):
    weights = np.zeros(5, np.float32)
    weights[3] = weight
    refused(r"policy\.max_weight is 10000", order(weights))
    check(order(np.full(5, 9999.0, np.float32)))


def test_weights_that_are_no_weights():
    for weights in (np.zeros((2, 2), np.float32), np.zeros(3, np.uint8)):
        refused("has no weights", order(weights))
    refused("has no weights", Note(order().head, {}, {}))


@pytest.mark.parametrize("round", [0, -1, 5001, HUGE, 1.0, True, "1", None, [1], {}])
def test_rounds(round):
    refused(r"round is .*policy\.max_rounds is 5000", order(round=round))
    refused(r"rounds is .*policy\.max_rounds is 5000", order(rounds=round))


@pytest.mark.parametrize("name", ["seed", "clients"])
@pytest.mark.parametrize("value", [-1, 2**63, HUGE, 0.5, "0", None, [0], True])
def test_seeds_and_counts(name, value):
    refused(f"{name} is ", order(**{name: value}))


def test_samples():
    check(order(), samples=10)
    refused(r"9 samples, fewer than policy\.min_samples 10", order(), samples=9)


def test_modes():
    check(order(), mode="encrypted-fedmed", cohort=3, **{})
    HospitalPolicy(mode="encrypted-fedmed").check_training(order(), 100, "encrypted-fedmed", 3)
    for mode in ("plaintext", "encrypted-caac", "secure-aggregation"):
        with pytest.raises(OrderRefused, match=f"but its update would leave in mode {mode}"):
            HospitalPolicy(mode="encrypted-fedmed").check_training(order(), 100, mode, 3)


def test_cohorts():
    check(order(), cohort=3)
    refused(r"sums of 2 hospitals, fewer than policy\.min_cohort 3", order(), cohort=2)
    check(order(), cohort=5, min_cohort=5)
    refused(r"fewer than policy\.min_cohort 5", order(), cohort=4, min_cohort=5)


DP = {"unit": "client", "clip": 1.0, "noise_multiplier": 2.0}


class TestDifferentialPrivacy:
    floor = {"unit": "client", "max_clip": 1.0, "min_noise": 1.5}

    def test_enough_is_accepted(self):
        check(order(dp=DP), dp=self.floor)
        check(order(dp={**DP, "noise_multiplier": 1.5, "clip": 0.1}), dp=self.floor)
        check(order(dp={"clip": 1.0, "epsilon": 2.0}), dp=self.floor)  # a multiplier of 2.42

    @pytest.mark.parametrize(
        ("dp", "reason"),
        [
            (None, "it has no differential privacy"),
            ({**DP, "unit": "patient"}, "protects a patient, not a client"),
            ({**DP, "clip": 1.1}, "it clips to 1.1"),
            ({**DP, "clip": math.inf}, "cannot be read"),
            ({**DP, "clip": 1e-300}, "it clips to 1e-300"),
            ({**DP, "noise_multiplier": 1.4}, "its noise is 1.4"),
            ({**DP, "noise_multiplier": math.inf}, "cannot be read"),
            ({**DP, "noise_multiplier": 1e31}, "its noise is 1e.31"),
            ({"clip": 1.0, "epsilon": 1000.0}, "its noise is 0.00"),
            ({**DP, "wings": 2}, "cannot be read"),
            ("much", "cannot be read"),
            ({"clip": 1.0, "epsilon": 1e-320}, "its noise is inf"),
        ],
    )
    def test_too_little_is_refused(self, dp, reason):
        refused(reason, order(dp=dp), dp=self.floor)

    def test_without_a_floor_none_is_demanded(self):
        check(order(dp=None))
        refused("cannot be read", order(dp={"wings": 2}))

    def test_a_floor_for_patients(self):
        floor = {"unit": "patient", "max_clip": 1.0, "min_noise": 1.0}
        check(order(dp={**DP, "unit": "patient"}), dp=floor)
        refused("protects a client, not a patient", order(dp=DP), dp=floor)

    def test_nothing_that_it_does_not_cover_is_reported(self):
        open_policy, private = HospitalPolicy(), HospitalPolicy(dp=DpFloor())
        assert open_policy.reports_loss
        assert open_policy.reports_metrics
        assert not private.reports_loss
        assert not private.reports_metrics
        with pytest.raises(OrderRefused, match="metrics stay here"):
            private.check_evaluation(order())
        HospitalPolicy(dp=DpFloor(), report_metrics=True).check_evaluation(order())

    def test_the_problem_of_no_numbers(self):
        assert DpFloor().problem(DpParams(noise_multiplier=1.0)) is None


def test_evaluation_has_the_bounds_of_a_model():
    policy = HospitalPolicy(models=["mlp"])
    policy.check_evaluation(order())
    for asked in (
        order(model={"name": "logistic"}),
        order(np.array([math.nan], np.float32)),
        order(np.array([1e9], np.float32)),
        order(round=0),
        order(training={"lr": -1}),
    ):
        with pytest.raises(OrderRefused):
            policy.check_evaluation(asked)


def test_what_is_reported_has_few_digits():
    policy = HospitalPolicy(report_digits=3)
    rounded = policy.rounded({"loss": 123456.789, "auroc": 0.123456789, "f1": 0.0})
    assert rounded == {"loss": 123000.0, "auroc": 0.123, "f1": 0.0}
    assert HospitalPolicy().rounded({"loss": 0.6931471}) == {"loss": 0.6931}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"lr": [1.0, 0.1]}, "lr"),
        ({"lr": [0.0, 0.1]}, "lr"),
        ({"lr": 0.1}, "lr"),
        ({"wings": 2}, "wings"),
        ({"dp": {"budget": -1}}, "budget"),
        ({"min_cohort": 1}, "min_cohort"),
        ({"mode": "secret"}, "mode"),
        ({"report_digits": 0}, "report_digits"),
    ],
)
def test_a_policy_that_makes_no_sense_is_an_error_of_one_line(policy, said):
    with pytest.raises(ConfigError, match=said) as error:
        hospital_from({"name": "north", "dataset": {"name": "synthetic"}, "policy": policy})
    assert "\n" not in str(error.value)


def test_a_policy_is_told_in_words():
    lines = HospitalPolicy(models=["mlp"], dp=DpFloor(budget=8.0)).describe()
    text = "\n".join(lines)
    assert "models: mlp" in text
    assert "ε 8 in all" in text
    assert "stay here" in text
    assert "reported with 4 digits" in "\n".join(HospitalPolicy().describe())


def test_control_variates():
    """SCAFFOLD: there where the training asks for it, bounded as weights are, and not under differential privacy."""
    scaffold = {"method": "scaffold", "optimizer": "sgd"}

    def with_control(control, training=scaffold, **head):
        asked = order(training=training, **head)
        return Note(asked.head, {}, {**asked.arrays, "control": control})

    check(with_control(np.full(10, 9.0, np.float32)), max_weight=10)
    refused("go together", order(training=scaffold))
    refused("go together", with_control(np.zeros(10, np.float32), training={}))
    refused(r"of 11; policy\.max_weight is 10", with_control(np.full(10, 11.0, np.float32)), max_weight=10)
    refused("a control variate of nan", with_control(np.full(10, np.nan, np.float32)))
    refused("cannot be read", with_control(np.zeros((2, 5), np.float32)))
    refused("cannot be read", with_control(np.zeros(10, np.int64)))
    dp = DpParams(epsilon=8.0, clip=1.0).model_dump()
    refused("not defined with differential privacy", with_control(np.zeros(10, np.float32), dp=dp))
    refused("does not say how to train", with_control(np.zeros(10, np.float32), {"method": "scaffold"}))


def test_a_hospital_may_keep_its_updates_whole():
    by_outcome = order(policy={"by_outcome": True})
    check(by_outcome)
    check(order(), split_by_outcome=False)
    refused(
        r"policy\.split_by_outcome: updates leave this hospital whole", by_outcome, split_by_outcome=False
    )
    demands_dp = {"dp": DpFloor()}
    assert not HospitalPolicy(**demands_dp).splits_by_outcome
    assert HospitalPolicy(**demands_dp, split_by_outcome=True).splits_by_outcome
