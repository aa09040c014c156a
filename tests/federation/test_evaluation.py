"""Metrics against scikit-learn on plain cases and against hand counts on odd ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from wardround import models
from wardround.datasets.base import Dataset, Split, Task
from wardround.datasets.patient_groups import rows_of_groups
from wardround.federation.evaluation import Evaluator, metrics_of, predict
from wardround.federation.scoring import choose_thresholds, gaps_between, measure, measure_groups
from wardround.updates import Layout

rng = np.random.default_rng(0)


def test_binary_by_hand():
    logits = torch.tensor([[2.0], [1.0], [-1.0], [-2.0]])
    metrics = metrics_of(logits, torch.tensor([1, 0, 1, 0]), Task.BINARY)
    assert metrics["auroc"] == 0.75  # three of four pairs in order
    assert metrics["accuracy"] == 0.5
    assert metrics["f1"] == 0.5
    assert metrics["loss"] == pytest.approx(
        np.mean([np.log1p(np.exp(-2)), np.log1p(np.exp(1)), np.log1p(np.exp(1)), np.log1p(np.exp(-2))])
    )


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=40))
def test_binary_is_what_scikit_learn_says_with_ties_too(samples):
    scores, truth = np.array([s for s, _ in samples], float), np.array([t for _, t in samples])
    metrics = metrics_of(torch.tensor(scores)[:, None], torch.tensor(truth).long(), Task.BINARY)
    assert metrics["f1"] == pytest.approx(reference.f1_score(truth, scores > 0, zero_division=0.0))
    assert metrics["accuracy"] == pytest.approx(reference.accuracy_score(truth, scores > 0))
    if truth.any():
        assert metrics["auprc"] == pytest.approx(reference.average_precision_score(truth, scores))
    if truth.any() and not truth.all():
        assert metrics["auroc"] == pytest.approx(reference.roc_auc_score(truth, scores))


def test_multi_class_is_hand_and_till():
    logits, truth = rng.standard_normal((60, 3)), rng.integers(0, 3, 60)
    metrics = metrics_of(torch.tensor(logits), torch.tensor(truth), Task.MULTICLASS)
    pairs = []
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for i in range(3):
        for j in range(i):
            rows = (truth == i) | (truth == j)
            pairs.append(reference.roc_auc_score(truth[rows] == i, shares[rows, i]))
            pairs.append(reference.roc_auc_score(truth[rows] == j, shares[rows, j]))
    assert metrics["auroc"] == pytest.approx(np.mean(pairs))


def test_a_class_that_is_missing_in_the_test_split_is_no_obstacle():
    logits = torch.tensor(rng.standard_normal((40, 4)))
    for present in ([0, 1, 3], [1, 3]):
        truth = torch.tensor(rng.choice(present, 40))
        assert 0 <= metrics_of(logits, truth, Task.MULTICLASS)["auroc"] <= 1
    assert math.isnan(metrics_of(logits, torch.zeros(40, dtype=torch.long), Task.MULTICLASS)["auroc"])


def test_multi_label_averages_over_findings_that_occur():
    logits = torch.tensor(rng.standard_normal((30, 3)))
    truth = torch.tensor(rng.integers(0, 2, (30, 3))).float()
    truth[:, 2] = 0
    metrics = metrics_of(logits, truth, Task.MULTILABEL)
    expected = [reference.roc_auc_score(truth[:, c], logits[:, c]) for c in (0, 1)]
    assert metrics["auroc"] == pytest.approx(np.mean(expected))
    expected = [reference.average_precision_score(truth[:, c], logits[:, c]) for c in (0, 1)]
    assert metrics["auprc"] == pytest.approx(np.mean(expected))
    expected = [reference.f1_score(truth[:, c], logits[:, c] > 0) for c in (0, 1)]
    assert metrics["f1"] == pytest.approx(np.mean(expected))


def test_undefined_is_nan_and_a_broken_model_has_no_metrics():
    metrics = metrics_of(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]), Task.BINARY)
    assert math.isnan(metrics["auroc"])
    assert math.isnan(metrics["auprc"])
    assert metrics["accuracy"] == 0.0
    broken = metrics_of(torch.tensor([[math.nan], [2.0]]), torch.tensor([0, 1]), Task.BINARY)
    assert all(math.isnan(value) for value in broken.values())
    assert all(
        math.isnan(value) for value in metrics_of(torch.empty(0, 1), torch.empty(0), Task.BINARY).values()
    )


def test_brier_and_calibration_are_scikit_learns():
    logits, truth = torch.tensor(rng.standard_normal((200, 1))), torch.tensor(rng.integers(0, 2, 200))
    measured = measure(logits, truth, Task.BINARY)
    shares = torch.sigmoid(logits[:, 0]).numpy()
    assert measured.metrics["brier"] == pytest.approx(reference.brier_score_loss(truth, shares))
    observed, predicted = calibration_curve(truth, shares, n_bins=10)
    assert [one.observed for one in measured.calibration] == pytest.approx(observed)
    assert [one.predicted for one in measured.calibration] == pytest.approx(predicted)
    gaps = [one.n / 200 * abs(one.observed - one.predicted) for one in measured.calibration]
    assert measured.metrics["ece"] == pytest.approx(sum(gaps))


def test_multi_class_brier_is_the_sum_over_classes_and_calibration_that_of_the_said_class():
    logits, truth = torch.tensor(rng.standard_normal((150, 4))), torch.tensor(rng.integers(0, 4, 150))
    measured = measure(logits, truth, Task.MULTICLASS)
    shares = torch.softmax(logits, 1).numpy()
    expected = reference.brier_score_loss(truth, shares, scale_by_half=False, labels=range(4))
    assert measured.metrics["brier"] == pytest.approx(expected)
    observed, predicted = calibration_curve(shares.argmax(1) == truth.numpy(), shares.max(1), n_bins=10)
    assert [one.observed for one in measured.calibration] == pytest.approx(observed)
    assert [one.predicted for one in measured.calibration] == pytest.approx(predicted)
    said = shares.argmax(1)
    assert measured.metrics["f1"] == pytest.approx(reference.f1_score(truth, said, average="macro"))
    assert measured.metrics["sensitivity"] == pytest.approx(reference.balanced_accuracy_score(truth, said))
    assert "threshold" not in measured.metrics


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_macro_f1_is_what_scikit_learn_says_with_absent_classes_too(samples):
    truth, said = np.array([t for t, _ in samples]), np.array([s for _, s in samples])
    logits = (
        torch.nn.functional.one_hot(torch.tensor(said), 4) * 50.0
    )  # sure, also of classes that do not occur
    metrics = metrics_of(logits, torch.tensor(truth), Task.MULTICLASS)
    assert metrics["f1"] == pytest.approx(reference.f1_score(truth, said, average="macro", zero_division=0.0))
    assert metrics["accuracy"] == pytest.approx((truth == said).mean())


def test_thresholds_are_those_of_the_validation_rows():
    logits = torch.tensor([[-3.0], [-2.0], [-1.0], [-0.5]])
    truth = torch.tensor([0, 0, 1, 1])
    thresholds = choose_thresholds(logits, truth, Task.BINARY)
    expected = (torch.sigmoid(torch.tensor(-2.0)) + torch.sigmoid(torch.tensor(-1.0))) / 2
    assert thresholds.values[0] == pytest.approx(float(expected))
    assert metrics_of(logits, truth, Task.BINARY)["f1"] == 0, "nobody is above one half"
    measured = measure(logits, truth, Task.BINARY, thresholds)
    assert measured.metrics["f1"] == measured.metrics["sensitivity"] == measured.metrics["specificity"] == 1
    assert measured.metrics["threshold"] == thresholds.values[0]
    assert "threshold" not in measured.reasons


@pytest.mark.parametrize(
    ("targets", "kind", "text"),
    [([], "no-rows", "no validation rows"), ([1, 1], "one-class", "2 validation rows of one class")],
)
def test_where_no_threshold_can_be_chosen_it_is_one_half_and_says_so(targets, kind, text):
    thresholds = choose_thresholds(torch.ones(len(targets), 1), torch.tensor(targets).long(), Task.BINARY)
    assert thresholds.values == (0.5,)
    measured = measure(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]), Task.BINARY, thresholds)
    assert measured.metrics["threshold"] == 0.5
    assert measured.reasons["threshold"].kind == kind
    assert text in measured.reasons["threshold"].text


def test_every_finding_has_a_threshold_of_its_own():
    logits = torch.tensor([[2.0, -3.0, 0.0], [1.0, -2.0, 0.0], [0.5, -1.0, 0.0], [0.2, -0.5, 0.0]])
    truth = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    thresholds = choose_thresholds(logits, truth, Task.MULTILABEL)
    measured = measure(logits, truth, Task.MULTILABEL, thresholds, ("one", "two", "never"))
    assert measured.metrics["f1"] == 1
    assert measured.thresholds["one"] > 0.5 > measured.thresholds["two"]
    assert measured.thresholds["never"] == 0.5
    assert "never" in measured.reasons["threshold"].text
    expected = [reference.brier_score_loss(truth[:, c], torch.sigmoid(logits[:, c])) for c in range(3)]
    assert measured.metrics["brier"] == pytest.approx(np.mean(expected))


def test_what_cannot_be_computed_says_why():
    one_class = measure(
        torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]), Task.BINARY, None, ("well", "ill")
    )
    assert one_class.reasons["auroc"].kind == "one-class"
    assert one_class.reasons["auroc"].text == "all 2 rows are of class 'well'"
    assert math.isfinite(one_class.metrics["brier"])
    broken = measure(torch.tensor([[math.nan], [2.0]]), torch.tensor([0, 1]), Task.BINARY)
    assert broken.reasons["auroc"].kind == "not-finite"
    assert "1 of 2 rows" in broken.reasons["loss"].text
    nobody = measure(torch.empty(0, 3), torch.empty(0, dtype=torch.long), Task.MULTICLASS)
    assert {reason.kind for reason in nobody.reasons.values()} == {"no-rows"}
    assert set(nobody.reasons) == set(nobody.metrics)
    only = measure(torch.ones(4, 3), torch.ones(4, dtype=torch.long), Task.MULTICLASS, None, ("a", "b", "c"))
    assert only.reasons["auroc"].text == "all 4 rows are of class 'b'"


GROUPS = {"sex": ["female"] * 30 + ["male"] * 30 + ["unknown"] * 25, "site": ["north"] * 80 + ["south"] * 5}


def test_groups_have_the_figures_of_their_rows():
    logits, truth = torch.tensor(rng.standard_normal((85, 1))), torch.tensor(rng.integers(0, 2, 85))
    thresholds = choose_thresholds(logits, truth, Task.BINARY)
    groups = measure_groups(logits, truth, Task.BINARY, thresholds, rows_of_groups(GROUPS))
    said = (torch.sigmoid(logits[:, 0]) > thresholds.values[0]).numpy()
    women = slice(0, 30)
    female = groups["sex"]["female"]
    assert female["n"] == 30
    assert female["auroc"] == pytest.approx(reference.roc_auc_score(truth[women], logits[women]))
    assert female["f1"] == pytest.approx(reference.f1_score(truth[women], said[women]))
    assert female["sensitivity"] == pytest.approx(reference.recall_score(truth[women], said[women]))
    south = groups["site"]["south"]
    assert south["n"] == 5
    assert south["auroc"] is None
    assert south["reason"] == "5 rows, fewer than 20"
    gaps = gaps_between(groups)
    male = groups["sex"]["male"]
    assert gaps["sex"]["auroc"] == pytest.approx(abs(female["auroc"] - male["auroc"])), "without unknown"
    assert gaps["site"]["auroc"] is None, "one site has no figure"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.sampled_from([(Task.BINARY, 1), (Task.MULTILABEL, 3)]))
def test_groups_together_have_what_each_has_alone(seed, kind):
    task, outputs = kind
    draw = np.random.default_rng(seed)
    logits = torch.tensor(draw.integers(-3, 4, (40, outputs)) / 2)  # many are equal
    truth = torch.tensor(draw.random((40, outputs)) < draw.random())
    targets = truth[:, 0].long() if task is Task.BINARY else truth.float()
    thresholds = choose_thresholds(logits, targets, task)
    groups = {
        "one": rows_of_groups({"g": draw.choice(["a", "b", "c", "d"], 40).tolist()})["g"],
        "other, overlapping": {"some": draw.permutation(40)[:7], "same": np.arange(3)},
    }
    together = measure_groups(logits, targets, task, thresholds, groups, least_rows=2)
    for attribute, members in groups.items():
        for name, rows in members.items():
            found, alone = together[attribute][name], measure(logits[rows], targets[rows], task, thresholds)
            for metric in ("auroc", "accuracy", "f1", "sensitivity", "specificity", "brier"):
                if len(rows) >= 2:
                    expected = alone.metrics[metric]
                    assert found[metric] == (
                        None if math.isnan(expected) else pytest.approx(expected, rel=1e-12)
                    )


def test_a_group_of_one_class_says_so():
    truth = torch.tensor([0] * 30 + [1, 0] * 15)
    groups = {"sex": ["female"] * 30 + ["male"] * 30}
    measured = measure_groups(
        torch.randn(60, 1), truth, Task.BINARY, None, rows_of_groups(groups), class_names=("well", "ill")
    )
    female = measured["sex"]["female"]
    assert female["auroc"] is None
    assert female["accuracy"] is not None
    assert female["reason"] == "auroc, sensitivity: all 30 rows are of class 'well'"


def tiny_images(rows):
    inputs, targets = torch.zeros(rows, 3, 32, 32), torch.arange(rows) % 3
    split = Split(inputs, targets)
    return Dataset("pictures", Task.MULTICLASS, ("a", "b", "c"), split, split, split)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mlp"])
def test_a_network_on_no_rows_is_evaluated(name):
    dataset = tiny_images(6)
    model = models.build_seeded(models.create(name), (3, 32, 32), 3, 0)
    evaluator = Evaluator(model, dataset)
    weights = Layout.of(model).flatten(model.state_dict())
    measured = evaluator.on_test_rows(weights, np.array([], dtype=int))
    assert math.isnan(measured.metrics["auroc"])
    assert measured.reasons["auroc"].kind == "no-rows"
    test, _, details = evaluator.measure(weights * math.nan)
    assert all(math.isnan(value) for value in test.metrics.values())
    assert details.reasons["accuracy"].kind == "not-finite"


@pytest.mark.parametrize("shape", [(3, 64, 64), (5,)])
def test_threads_do_not_change_a_logit(shape):
    """More samples than two batches have, in any number of threads: the same bits, in the order of the samples."""
    torch.manual_seed(0)
    samples = 200 if len(shape) == 3 else 2500
    inputs = torch.randn(samples, *shape)
    split = Split(inputs, torch.arange(samples) % 7)
    dataset = Dataset("made up", Task.MULTICLASS, tuple("abcdefg"), split, split, split)
    network = models.create("dos-cnn" if len(shape) == 3 else "mlp").build(shape, outputs=7)
    alone = predict(network, dataset, inputs)
    assert alone.shape == (samples, 7)
    assert not alone.requires_grad
    for threads in (2, 3, 64):
        assert torch.equal(predict(network, dataset, inputs, threads), alone)
    with torch.no_grad():
        assert torch.allclose(alone[-5:], network(inputs[-5:]), atol=1e-5)
