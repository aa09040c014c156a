r"""Benign drift: the case mix of some clients moves slowly over the rounds, and nobody attacks.

A client's strength in round t is :math:`a(t) = \mathrm{clip}((t-\mathrm{start})/\mathrm{ramp}, 0, 1)`.

* **Feature shift** (tables): every sample of the client moves by :math:`a(t)\,\mathrm{size}\,(v_k \circ \sigma)`.
  :math:`\sigma` are the standard deviations of the columns in training rows; :math:`v_k` is a unit direction of the
  client's own, at right angles to the differences between the class means, so that what tells the classes apart on
  average stays as it is. Columns of two values (one-hot categories) do not move.
* **Label shift** (any dataset): a growing share of the client's samples, up to `label_shift`, is replaced by other
  samples of its own, all of one class that is drawn for it. How patients of a class look stays as it is.

Both follow from (seed, client, round) alone, so a resumed run sees the same samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from wardround.datasets.base import Dataset, DriftSpace, Task
from wardround.datasets.partition import Assignment, class_of
from wardround.datasets.targets import classes_of
from wardround.errors import ConfigError, WardroundWarning, did_you_mean
from wardround.randomness import numpy_generator
from wardround.registry import Parameters

__all__ = ["DriftParams", "FeatureShift", "LabelShift", "drift_space", "with_drift"]


class DriftParams(Parameters):
    """Whose case mix moves, and how."""

    clients: tuple[str, ...] = Field(min_length=1)
    """Their names, as the partition gives them: hospital-00, …"""
    feature_shift: float = Field(0.0, ge=0)
    """How far their samples end up, in standard deviations."""
    label_shift: float = Field(0.0, ge=0, le=1)
    """Which share of their samples is in the end replaced by such of one class."""
    start: int = Field(1, ge=1)
    """The last round in which nothing has moved yet."""
    ramp: int = Field(50, ge=1)
    """Rounds from there until the full distance."""

    @model_validator(mode="after")
    def _something_moves(self) -> DriftParams:
        if not self.feature_shift and not self.label_shift:
            raise ValueError(
                "nothing moves: give feature_shift (2.0 is two standard deviations) or label_shift"
            )
        return self

    def strength(self, client: str, round: int) -> float:
        """How much of the way a client has gone in a round: 0 to 1."""
        return min(max((round - self.start) / self.ramp, 0.0), 1.0) if client in self.clients else 0.0


@dataclass(frozen=True, eq=False)
class FeatureShift:
    """Moves the samples of the chosen clients."""

    params: DriftParams
    space: DriftSpace
    seed: int

    def __call__(self, samples: Tensor, client: str, round: int) -> Tensor:
        strength = self.params.strength(client, round)
        if strength == 0:
            return samples
        way = self.direction(client).to(samples.device)
        return samples + (self.params.feature_shift * strength) * way

    def direction(self, client: str) -> Tensor:
        """Where the client's samples move, per unit of `feature_shift`."""
        way = numpy_generator(self.seed, "drift", client).standard_normal(len(self.space.scale))
        way *= self.space.scale > 0
        for avoided in self.space.avoided:
            way -= (way @ avoided) * avoided
        return torch.from_numpy((way / np.linalg.norm(way) * self.space.scale).astype(np.float32))


@dataclass(frozen=True, eq=False)
class LabelShift:
    """Replaces samples of the chosen clients by others of their own, of one class."""

    params: DriftParams
    seed: int

    def __call__(self, classes: np.ndarray, client: str, round: int) -> np.ndarray | None:
        """Which of the client's samples it has in a round; None: each of them once.

        Args:
            classes: the class of each sample of the client.
            client: its name.
            round: from 1.
        """
        count = int(self.params.label_shift * self.params.strength(client, round) * len(classes) + 0.5)
        if not count:
            return None
        rng = numpy_generator(self.seed, "label-drift", client)
        favoured = rng.choice(np.unique(classes))
        order = rng.permutation(len(classes))
        drawn = rng.choice(np.flatnonzero(classes == favoured), len(classes))
        index = np.arange(len(classes))
        index[order[:count]] = drawn[:count]
        return index


def with_drift(dataset: Dataset, assignment: Assignment, params: DriftParams, seed: int) -> Dataset:
    """The dataset with clients whose case mix moves."""
    for client in params.clients:
        if client not in assignment.clients:
            raise ConfigError(
                f"drift.clients: no client '{client}'; {did_you_mean(client, assignment.clients)}"
            )
    moved = dataset.drift
    if params.feature_shift:
        moved = FeatureShift(params, dataset.drift_space or drift_space(dataset), seed)
    if params.label_shift:
        _warn_of_one_class(dataset, assignment, params.clients)
    resample = LabelShift(params, seed) if params.label_shift else None
    return replace(dataset, drift=moved, resample=resample)


def _warn_of_one_class(dataset: Dataset, assignment: Assignment, clients: Sequence[str]) -> None:
    classes = class_of(dataset.train)
    rows = dict(zip(assignment.clients, assignment.train, strict=True))
    stuck = [client for client in clients if len(np.unique(classes[rows[client]])) < 2]
    if stuck:
        warnings.warn(
            f"drift.label_shift: {', '.join(stuck)} has samples of one class only: its class mix cannot move",
            WardroundWarning,
            stacklevel=3,
        )


def drift_space(dataset: Dataset) -> DriftSpace:
    """Where samples of a table can move without changing what tells its classes apart, from its training rows."""
    inputs = dataset.train.inputs
    shape = dataset.input_shape
    if len(shape) != 1 or not inputs.is_floating_point():
        raise ConfigError(
            f"drift.feature_shift moves the columns of a table, but a sample of dataset '{dataset.name}' is "
            f"{' × '.join(map(str, shape))}; use drift.label_shift"
        )
    rows = dataset.prepare(inputs).double().numpy()
    values = np.sort(rows, axis=0)
    steps = (np.diff(values, axis=0) != 0).sum(0)  # one less than the number of different values
    scale = np.where(steps > 1, rows.std(0), 0.0)
    standardised = np.divide(rows - rows.mean(0), scale, out=np.zeros_like(rows), where=scale > 0)
    targets = dataset.train.targets.numpy()
    if dataset.task is Task.MULTILABEL:
        members = [targets[:, finding] > 0 for finding in range(targets.shape[1])]
    else:
        targets = classes_of(targets)
        members = [targets == number for number in range(len(dataset.class_names))]
    means = np.array([standardised[of_class].mean(0) for of_class in members if of_class.any()])
    _, sizes, directions = np.linalg.svd(means, full_matrices=False)
    avoided = directions[sizes > 1e-9 * max(sizes.max(initial=0.0), 1.0)]
    free = int((scale > 0).sum()) - len(avoided)
    if free < 1:
        raise ConfigError(
            f"drift.feature_shift: the {int((scale > 0).sum())} columns of dataset '{dataset.name}' that vary leave no "
            "way to move that does not change what tells the classes apart; use drift.label_shift"
        )
    return DriftSpace(avoided, scale)
