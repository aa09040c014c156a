"""How good a model is: metrics of one network on one split."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from wardround.attacks.backdoor import Backdoor
from wardround.datasets.base import Dataset, Split, Task
from wardround.metrics import auroc
from wardround.training.base import Objective
from wardround.updates import Layout

__all__ = ["Evaluator", "evaluate", "metrics_of", "predict"]

METRICS = ("auroc", "auprc", "accuracy", "f1", "loss")


class Evaluator:
    """Measures weights of one network on one dataset."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        validation_rows: Tensor | None = None,
        backdoors: Sequence[Backdoor] = (),
    ) -> None:
        """`validation_rows`: which validation samples count (None: all). `backdoors`: whose success is measured too."""
        self.model, self.dataset = model, dataset
        self.validation_rows, self.backdoors = validation_rows, backdoors
        self._layout = Layout.of(model)
        self._tensors = model.state_dict()

    def test_classes(self) -> list[int]:
        """Test rows of each class; positives per finding of a multi-label task."""
        targets, classes = self.dataset.test.targets, len(self.dataset.class_names)
        return (
            torch.bincount(targets, minlength=classes) if targets.ndim == 1 else targets.sum(0).int()
        ).tolist()

    def measure(self, weights: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics on the test split (with the success of backdoors, where there are any) and on validation."""
        metrics = self._on(weights, self.dataset.test, None)
        for backdoor in self.backdoors:
            metrics["attack_success"] = self._predicted_target(backdoor, triggered=True)
            metrics["attack_success_without_trigger"] = self._predicted_target(backdoor, triggered=False)
        return metrics, self.on_validation(weights)

    def on_validation(self, weights: Tensor) -> dict[str, float]:
        """Metrics on the validation samples that count."""
        return self._on(weights, self.dataset.validation, self.validation_rows)

    def on_test_rows(self, weights: Tensor, rows: np.ndarray | Tensor) -> dict[str, float]:
        """Metrics on some samples of the test split."""
        return self._on(weights, self.dataset.test, rows)

    def _on(self, weights: Tensor, split: Split, rows: np.ndarray | Tensor | None) -> dict[str, float]:
        with torch.no_grad():
            for name, value in self._layout.unflatten(weights).items():
                self._tensors[name].copy_(value)
        return evaluate(self.model, self.dataset, split, rows)

    def _predicted_target(self, backdoor: Backdoor, triggered: bool) -> float:
        """Share of test samples of other classes that get the backdoor's target, by the weights just measured.

        Only the difference between triggered and not is the attack's: a model that predicts the target for everyone
        needs no trigger.
        """
        test = self.dataset.test
        inputs = backdoor.trigger(test.inputs) if triggered else test.inputs
        logits = predict(self.model, self.dataset, inputs)
        if self.dataset.task is Task.MULTICLASS:
            return backdoor.success(logits.argmax(1), test.targets)
        return backdoor.success((logits > 0).to(test.targets.dtype).view_as(test.targets), test.targets)


def predict(model: nn.Module, dataset: Dataset, inputs: Tensor, batch_size: int = 1024) -> Tensor:
    """Logits of all samples."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(dataset.prepare(batch)) for batch in inputs.split(batch_size)])


def evaluate(
    model: nn.Module, dataset: Dataset, split: Split, rows: Sequence[int] | np.ndarray | Tensor | None = None
) -> dict[str, float]:
    """The metric set of the dataset's task on a split, or on some of its rows."""
    inputs, targets = split.inputs, split.targets
    if rows is not None:
        index = torch.as_tensor(rows, dtype=torch.long)
        inputs, targets = inputs[index], targets[index]
    return metrics_of(predict(model, dataset, inputs), targets, dataset.task)


def metrics_of(logits: Tensor, targets: Tensor, task: Task) -> dict[str, float]:
    """AUROC, AUPRC, accuracy, F1 and loss; NaN where the targets leave one undefined.

    Binary: as usual, threshold one half. Multi-class: Hand & Till's mean over pairs of classes for AUROC,
    macro averages else. Multi-label: macro averages over the findings that occur, mean accuracy a finding.

    >>> metrics_of(torch.tensor([[2.0], [-1.0], [1.0]]), torch.tensor([1, 0, 0]), Task.BINARY)["auroc"]
    1.0
    """
    if not len(targets):
        return dict.fromkeys(METRICS, math.nan)
    objective = Objective(task is Task.MULTICLASS, prepare=lambda stored: stored)
    loss = float(objective.loss(logits.double(), targets))
    if not math.isfinite(loss) and not bool(torch.isfinite(logits).all()):
        return dict.fromkeys(METRICS, math.nan)  # a model that was broken has no ranking to measure
    truth = targets.numpy()
    measure = {Task.BINARY: _binary, Task.MULTICLASS: _multi_class, Task.MULTILABEL: _multi_label}[task]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an undefined value is said by NaN
        return {**measure(logits.double(), truth), "loss": loss}


def _binary(logits: Tensor, truth: np.ndarray) -> dict[str, float]:
    scores, truth = logits[:, 0].numpy(), truth > 0
    area, auprc, f1 = _finding(scores, truth)
    return {"auroc": area, "auprc": auprc, "accuracy": float(((scores > 0) == truth).mean()), "f1": f1}


def _auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    return float(auroc(torch.from_numpy(scores), torch.from_numpy(truth)))


def _finding(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """AUROC, average precision and F1 at zero. Not sklearn's: it spends milliseconds on checking what is known to be
    right, and a run measures every hospital apart.

    >>> _finding(np.array([0.9, 0.5, 0.5, -0.1]), np.array([True, True, False, False]))
    (0.875, 0.8333333333333333, 0.8)
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # of equal scores the last
    hits = np.append(0, truth[order].cumsum()[ends])
    positives = hits[-1]
    precision = hits[1:] / (ends + 1)
    said = scores > 0
    named = positives + said.sum()
    return (
        _auroc(scores, truth),
        float(np.sum(np.diff(hits) * precision) / positives) if positives else math.nan,
        float(2 * (said & truth).sum() / named) if named else 0.0,
    )


def _multi_class(logits: Tensor, truth: np.ndarray) -> dict[str, float]:
    from sklearn import metrics

    shares = torch.softmax(logits, 1).numpy()
    said = shares.argmax(1)
    present = np.unique(truth)
    auprc = [metrics.average_precision_score(truth == c, shares[:, c]) for c in present]
    return {
        "auroc": _hand_till(shares, truth, present),
        "auprc": float(np.mean(auprc)),
        "accuracy": float((said == truth).mean()),
        "f1": float(metrics.f1_score(truth, said, average="macro", zero_division=0.0)),
    }


def _hand_till(shares: np.ndarray, truth: np.ndarray, present: np.ndarray) -> float:
    """Mean AUROC over pairs of the classes that occur, each ranked by its share among them; NaN for one class."""
    if len(present) < 2:
        return math.nan
    among = shares[:, present] / shares[:, present].sum(1, keepdims=True).clip(1e-300)
    if len(present) == 2:
        return _auroc(among[:, 1], truth == present[1])
    areas = []
    for one, other in itertools.combinations(range(len(present)), 2):
        rows = (truth == present[one]) | (truth == present[other])
        areas.append(
            (
                _auroc(among[rows, one], truth[rows] == present[one])
                + _auroc(among[rows, other], truth[rows] == present[other])
            )
            / 2
        )
    return float(np.mean(areas))


def _multi_label(logits: Tensor, truth: np.ndarray) -> dict[str, float]:
    scores, truth = logits.numpy(), truth > 0
    occurring = [_finding(scores[:, c], truth[:, c]) for c in range(truth.shape[1]) if truth[:, c].any()]

    def macro(values: Sequence[float]) -> float:
        known = [value for value in values if not math.isnan(value)]
        return float(np.mean(known)) if known else math.nan

    area, auprc, f1 = (
        (macro(values) for values in zip(*occurring, strict=True)) if occurring else (math.nan,) * 3
    )
    accuracy = float(((scores > 0) == truth).mean())
    return {"auroc": area, "auprc": auprc, "accuracy": accuracy, "f1": f1}
