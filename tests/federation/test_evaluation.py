"""Metrics against scikit-learn on plain cases and against hand counts on odd ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from wardround.datasets.base import Task
from wardround.federation.evaluation import metrics_of

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
