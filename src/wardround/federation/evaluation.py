"""How good a model is: one network on one dataset, with thresholds chosen on validation rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from wardround.attacks.backdoor import Backdoor
from wardround.datasets.base import Dataset, MappedRows, Split, Task
from wardround.datasets.patient_groups import groups_of_rows, rows_of_groups
from wardround.datasets.targets import class_counts
from wardround.federation.scoring import (
    METRICS,
    MIN_GROUP_ROWS,
    Measurement,
    Thresholds,
    choose_thresholds,
    gaps_between,
    measure,
    measure_groups,
    metrics_of,
    rank,
)
from wardround.records import EvaluationDetails
from wardround.threads import one_thread
from wardround.updates import Layout

__all__ = ["METRICS", "Evaluator", "details_of", "evaluate", "metrics_of", "predict"]

SMALLEST_BATCH, LARGEST_BATCH = 16, 1024
BATCH_VALUES = 1 << 20
"""Input values of a batch: 85 images of 64 × 64 in colour."""


class Evaluator:
    """Measures weights of one network on one dataset."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        validation_rows: Tensor | None = None,
        backdoors: Sequence[Backdoor] = (),
        threads: int = 1,
    ) -> None:
        """`validation_rows`: which validation samples count (None: all). `backdoors`: whose success is measured too.
        `threads`: how many compute side by side, each on batches of its own; the figures are the same for any number.
        """
        self.model, self.dataset, self.threads = model, dataset, threads
        self.validation_rows, self.backdoors = validation_rows, backdoors
        self._groups = rows_of_groups(dataset.test.patient_groups)
        layout, tensors = Layout.of(model), model.state_dict()
        self._places = [(layout.slices[name], tensors[name].view(-1)) for name in layout.names]

    @cached_property
    def _validation(self) -> Split:
        """The validation samples that count: picked once, not in every round."""
        split = self.dataset.validation
        if self.validation_rows is None:
            return split
        index, inputs = torch.as_tensor(self.validation_rows, dtype=torch.long), split.inputs
        if isinstance(inputs, MappedRows):  # batches are read from the file as they are needed
            picked = cast(Tensor, MappedRows(inputs.stored, inputs.rows[index]))
        else:
            picked = inputs[index]
        return replace(split, inputs=picked, targets=split.targets[index])

    def test_classes(self) -> list[int]:
        """Test rows of each class; positives per finding of a multi-label task."""
        return class_counts(self.dataset.test.targets, len(self.dataset.class_names))

    def measure(self, weights: Tensor) -> tuple[Measurement, Measurement, EvaluationDetails]:
        """The figures on the test split (with the success of backdoors, where there are any), those on validation
        rows, and what the test split says beside its metrics."""
        thresholds, validation = self.on_validation(weights)
        measured = self.on_test_rows(weights, None, thresholds, MIN_GROUP_ROWS)
        if self.backdoors:  # of several the one that has achieved most
            pairs = [
                tuple(self._predicted_target(backdoor, thresholds, triggered) for triggered in (True, False))
                for backdoor in self.backdoors
            ]
            success, without = max(
                pairs, key=lambda pair: pair[0] - pair[1] if pair[0] == pair[0] else -math.inf
            )
            measured.metrics["attack_success"] = success
            measured.metrics["attack_success_without_trigger"] = without
        return measured, validation, details_of(measured)

    def on_validation(self, weights: Tensor) -> tuple[Thresholds, Measurement]:
        """The thresholds that the validation samples that count choose, and the figures on these samples."""
        dataset = self.dataset
        logits, targets = self._logits(weights, self._validation, None)
        ranked = rank(logits, targets, dataset.task)
        thresholds = choose_thresholds(logits, targets, dataset.task, ranked)
        return thresholds, measure(logits, targets, dataset.task, thresholds, dataset.class_names, ranked)

    def on_test_rows(
        self,
        weights: Tensor,
        rows: np.ndarray | Tensor | None,
        thresholds: Thresholds | None = None,
        least_group: int | None = None,
    ) -> Measurement:
        """The figures on some samples of the test split.

        Args:
            weights: of the network.
            rows: which test samples; None: all.
            thresholds: see `on_validation`; None: one half.
            least_group: samples of a patient group that has figures; None: no figures per group.
        """
        dataset, test = self.dataset, self.dataset.test
        logits, targets = self._logits(weights, test, rows)
        measured = measure(logits, targets, dataset.task, thresholds, dataset.class_names)
        if least_group is None or not test.patient_groups:
            return measured
        groups = self._groups
        if rows is not None:
            groups = rows_of_groups(groups_of_rows(test.patient_groups, np.asarray(rows)))
        found = measure_groups(
            logits,
            targets,
            dataset.task,
            thresholds,
            groups,
            least_group,
            dataset.class_names,
            measured.ranked,
        )
        return replace(measured, groups=found)

    def on_each_share(
        self, weights: Tensor, shares: Sequence[np.ndarray], thresholds: Thresholds | None = None
    ) -> Iterator[Measurement]:
        """The figures on each of several sets of test rows; the test split is predicted once for all of them."""
        logits, targets = self._logits(weights, self.dataset.test, None)
        for rows in shares:
            index = torch.as_tensor(rows, dtype=torch.long)
            yield measure(
                logits[index], targets[index], self.dataset.task, thresholds, self.dataset.class_names
            )

    def _logits(
        self, weights: Tensor, split: Split, rows: np.ndarray | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for place, values in self._places:
                values.copy_(weights[place])
        inputs, targets = split.inputs, split.targets
        if rows is not None:
            index = torch.as_tensor(rows, dtype=torch.long)
            inputs, targets = inputs[index], targets[index]
        return predict(self.model, self.dataset, inputs, self.threads), targets

    def _predicted_target(self, backdoor: Backdoor, thresholds: Thresholds, triggered: bool) -> float:
        """Share of test samples of other classes that get the backdoor's target, by the weights just measured.

        Only the difference between triggered and not is the attack's: a model that predicts the target for everyone
        needs no trigger.
        """
        test = self.dataset.test
        inputs = backdoor.trigger(test.inputs) if triggered else test.inputs
        logits = predict(self.model, self.dataset, inputs, self.threads)
        if self.dataset.task is Task.MULTICLASS:
            predicted = logits.argmax(1)
        else:
            said = torch.sigmoid(logits.double()) > torch.tensor(thresholds.values, dtype=torch.float64)
            predicted = said.to(test.targets.dtype).view_as(test.targets)
        meant = backdoor.selected(test.inputs, test.targets)
        others = backdoor.victims(test.targets) & ~meant
        # Without a trigger: the same samples, or those that are not meant where certain ones are.
        among = meant if triggered or not bool(others.any()) else others
        return backdoor.success(predicted, test.targets, among)


def details_of(measured: Measurement) -> EvaluationDetails:
    """What a record says of a measurement on test rows beside its metrics."""
    return EvaluationDetails(
        measured.reasons,
        thresholds=measured.thresholds,
        calibration=tuple(measured.calibration),
        groups=measured.groups,
        gaps=gaps_between(measured.groups),
    )


def predict(model: nn.Module, dataset: Dataset, inputs: Tensor, threads: int = 1) -> Tensor:
    """Logits of all samples; of none, where there are none: many networks cannot take an empty batch.

    Batches are as large as the cache likes, whatever the number of threads: the logits do not depend on it.
    """
    if not len(inputs):
        return torch.empty(0, dataset.outputs)
    if model.training:  # asking costs less than setting every layer
        model.eval()
    size = min(LARGEST_BATCH, max(SMALLEST_BATCH, BATCH_VALUES // math.prod(inputs.shape[1:])))

    def logits_from(first: int) -> Tensor:
        with torch.no_grad():  # a setting of the thread
            logits: Tensor = model(dataset.prepare(inputs[first : first + size]))
            return logits

    starts = range(0, len(inputs), size)
    threads = min(threads, len(starts))
    if threads == 1:
        return torch.cat([logits_from(first) for first in starts])
    with (
        one_thread(),
        ThreadPoolExecutor(threads) as pool,
    ):  # ended here: workers may be forked between rounds
        return torch.cat(list(pool.map(logits_from, starts)))


def evaluate(
    model: nn.Module, dataset: Dataset, split: Split, rows: Sequence[int] | np.ndarray | Tensor | None = None
) -> dict[str, float]:
    """The metric set of the dataset's task on a split, or on some of its rows, with a threshold of one half."""
    inputs, targets = split.inputs, split.targets
    if rows is not None:
        index = torch.as_tensor(rows, dtype=torch.long)
        inputs, targets = inputs[index], targets[index]
    return metrics_of(predict(model, dataset, inputs), targets, dataset.task)
