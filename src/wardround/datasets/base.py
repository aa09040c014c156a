"""What a dataset is: three splits, a task, and how stored samples become model input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from wardround.datasets.patient_groups import PatientGroups, groups_of_rows
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Label, Schema
from wardround.datasets.table import Table
from wardround.datasets.targets import classes_of
from wardround.errors import DataError
from wardround.randomness import numpy_generator
from wardround.registry import Configurable, Parameters, Registry

__all__ = [
    "Dataset", "DatasetSource", "MappedRows", "Parameters", "RawTable", "Split", "Task", "check_classes", "register",
    "registry", "split_samples", "split_units",
]  # fmt: skip


class Task(StrEnum):
    """What a sample's target is."""

    BINARY = "binary"
    MULTICLASS = "multi-class"
    MULTILABEL = "multi-label"
    SURVIVAL = "survival"
    """Time until an event, which may be censored: see `wardround.survival`."""

    @classmethod
    def of_label(cls, label: Label) -> Task:
        """What is predicted of a table with this label."""
        if label.time is not None:
            return cls.SURVIVAL
        return cls.BINARY if len(label.classes) == 2 else cls.MULTICLASS

    @property
    def has_thresholds(self) -> bool:
        """Is something said of a sample if a probability is above a threshold?"""
        return self in (Task.BINARY, Task.MULTILABEL)

    @property
    def has_one_output(self) -> bool:
        """Is one number per sample enough: a logit, or a log hazard?"""
        return self in (Task.BINARY, Task.SURVIVAL)


class MappedRows:
    """Some rows of a tensor that may be larger than memory; reads like the tensor of these rows.

    Only what is asked for is copied out of the (memory-mapped) tensor behind it.

    >>> rows = MappedRows(torch.arange(10) * 10, torch.tensor([7, 2, 5]))
    >>> len(rows), rows[1], rows[torch.tensor([2, 0])], [part.tolist() for part in rows.split(2)]
    (3, tensor(20), tensor([50, 70]), [[70, 20], [50]])
    """

    def __init__(self, stored: Tensor, rows: Tensor) -> None:
        self.stored, self.rows = stored, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        return self.stored[self.rows[index]]

    def split(self, size: int) -> Iterator[Tensor]:
        """Batch after batch, each read when its turn comes."""
        return (self.stored[rows] for rows in self.rows.split(size))

    def to(self, target: torch.device | torch.dtype | str) -> Tensor:
        """All rows as one tensor, on another device or of another type."""
        return self[:].to(target)

    def clone(self) -> Tensor:
        """All rows as one tensor of their own."""
        return self[:]

    def is_floating_point(self) -> bool:
        return self.stored.is_floating_point()

    @property
    def ndim(self) -> int:
        return self.stored.ndim

    @property
    def device(self) -> torch.device:
        return self.stored.device

    @property
    def _version(self) -> int:
        """As a tensor's: counts the changes made in place to what is stored."""
        return self.stored._version

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.stored.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.stored.dtype


@dataclass(frozen=True, eq=False)
class Split:
    """Samples as they are stored: tables as float32, images as uint8 (possibly memory-mapped)."""

    inputs: Tensor
    """n × …; of a prepared image dataset a `MappedRows`, which is indexed and split like a tensor."""
    targets: Tensor
    """Class indices (int64, n); n × L float zeros and ones for a multi-label task; n signed times (float64) for a
    survival task."""
    groups: Sequence[str] | None = None
    """The natural client (hospital, source) of each sample, where the data has one."""
    patient_groups: PatientGroups = field(default_factory=dict)
    """Attribute (sex, age, site) → the group of each sample, for figures per group; empty where the data has none."""

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class RawTable:
    """The table behind a dataset, for which the preprocessing is fitted when it is known who holds which row."""

    table: Table
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Its rows in the training, validation and test splits."""
    label: Label
    schema: Schema | None = None
    """Its columns and levels where they are fixed; None: clients' statistics agree on them."""


class Drift(Protocol):
    """Moves a client's model input slowly over the rounds; treats every sample by itself."""

    def __call__(self, samples: Tensor, client: str, round: int) -> Tensor: ...


class Resample(Protocol):
    """Which of its samples a client has in a round, given the class of each; None: each of them once."""

    def __call__(self, classes: np.ndarray, client: str, round: int) -> np.ndarray | None: ...


@dataclass(frozen=True, eq=False)
class DriftSpace:
    """Where samples of a table can move without changing what tells its classes apart."""

    avoided: np.ndarray
    """Orthonormal directions (k × columns), in units of `scale`, along which classes differ."""
    scale: np.ndarray
    """The unit of length of each column; 0 for one that does not move."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded dataset. Nothing in it was fitted on anything but training rows."""

    name: str
    task: Task
    class_names: tuple[str, ...]
    """One per class; one per finding for a multi-label task; of a survival task the words for censored and event."""
    train: Split
    validation: Split
    test: Split
    to_input: Callable[[Tensor], Tensor] | None = None
    """Stored batch → model input (normalisation of images); None: stored samples are model input."""
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    """Random change of a batch of model input, in training only."""
    drift: Drift | None = None
    """(stored samples of a client, the client, round) → the samples as they are in that round: a case mix
    that moves benignly. In training only; None: nothing moves. See `wardround.datasets.drift`."""
    feature_names: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers worth telling: cohort sizes, coverage, what was dropped."""
    raw: RawTable | None = None
    """Of a table: its columns as they are in the files."""
    schema: Schema | None = None
    """Of a table: what its columns mean."""
    preprocessing: Preprocessing | None = None
    """Of a table: how its columns became `inputs`; fitted from clients' statistics, saved with the model."""
    resample: Resample | None = None
    """Which of its samples a client has in a round: a class mix that moves. In training only."""
    drift_space: DriftSpace | None = None
    """Where samples can move benignly, if the dataset knows that; None: training rows say it."""

    @property
    def outputs(self) -> int:
        """How many logits a model for this dataset has: one for a binary or survival task."""
        return 1 if self.task.has_one_output else len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it."""
        return tuple(self.prepare(self.train.inputs[:1]).shape[1:])

    def prepare(self, stored: Tensor) -> Tensor:
        """A stored batch as model input."""
        return stored if self.to_input is None else self.to_input(stored)


class DatasetSource(Configurable):
    """A dataset by name. `load` gives the splits; sources with raw files are prepared into a cache first."""

    task: ClassVar[Task]
    summary: ClassVar[str] = ""
    """What it is, in one line."""
    extra: ClassVar[str | None] = None
    """What must be installed for it beside wardround itself: `pip install 'wardround[…]'`."""
    licence: ClassVar[str] = ""
    origin: ClassVar[str] = ""
    """Where a person gets it."""
    layout: ClassVar[str] = ""
    """The raw files as they are expected, in one line; empty where none are needed."""

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """The dataset split 70/10/20 by patient (or lesion, or subject) with this seed."""

    def load_as(self, schema: Schema, seed: int) -> Dataset:
        """The dataset in the columns, levels and classes of a schema, some of which may not occur in it."""
        from wardround.datasets.tabular import conformed_dataset

        return conformed_dataset(self.load(seed), schema, seed)


registry: Registry[DatasetSource] = Registry("dataset", "wardround.datasets", base=DatasetSource)
register = registry.register


def split_units(
    units: Sequence[object] | np.ndarray,
    seed: int,
    shares: tuple[float, float, float] = (0.7, 0.1, 0.2),
    strata: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row indices of train, validation and test, such that no unit (patient, lesion) is in two of them.

    Args:
        units: the unit of each row.
        strata: the class of each row (not negative). Each class is then split by itself, so that the three parts have
            the same share of it; a unit with rows of several classes counts as one of the highest.

    >>> train, validation, test = split_units(["a", "a", "b", "c", "d"], seed=0, shares=(0.5, 0.25, 0.25))
    >>> sorted(np.concatenate([train, validation, test]).tolist())
    [0, 1, 2, 3, 4]
    >>> classes = np.array([1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    >>> train, _, test = split_units(range(10), seed=0, shares=(0.5, 0.0, 0.5), strata=classes)
    >>> classes[train].sum(), classes[test].sum()
    (np.int64(1), np.int64(1))
    """
    _, unit_of_row = np.unique(np.asarray(units), return_inverse=True)
    count = int(unit_of_row.max()) + 1 if len(unit_of_row) else 0
    order = numpy_generator(seed, "split").permutation(count)
    stratum_of_unit = np.zeros(count, dtype=int)
    if strata is not None:
        np.maximum.at(stratum_of_unit, unit_of_row, strata)
    part_of_unit = np.empty(count, dtype=int)
    for stratum in np.unique(stratum_of_unit):
        own = order[stratum_of_unit[order] == stratum]
        first, second = round(shares[0] * len(own)), round((shares[0] + shares[1]) * len(own))
        for part, chosen in enumerate(np.split(own, [first, second])):
            part_of_unit[chosen] = part
    part_of_row = part_of_unit[unit_of_row]
    return tuple(np.flatnonzero(part_of_row == p) for p in range(3))  # type: ignore[return-value]


def split_samples(
    inputs: Tensor,
    targets: Tensor,
    units: Sequence[object] | np.ndarray,
    seed: int,
    groups: Sequence[str] | np.ndarray | None = None,
    patient_groups: PatientGroups | None = None,
) -> tuple[Split, Split, Split]:
    """Train, validation and test by `split_units`."""
    named = None if groups is None else np.asarray(groups, dtype=object)
    parts = split_units(units, seed)
    train, validation, test = (
        Split(
            inputs[rows],
            targets[rows],
            None if named is None else tuple(named[rows]),
            groups_of_rows(patient_groups or {}, rows),
        )
        for rows in parts
    )
    return train, validation, test


def check_classes(dataset: Dataset) -> Dataset:
    """The dataset itself, if every class of a binary or multi-class task occurs in training.

    A survival task needs an event; that nobody is censored is no harm.
    """
    if dataset.task is not Task.MULTILABEL:
        counts = np.bincount(classes_of(dataset.train.targets.numpy()), minlength=len(dataset.class_names))
        missing = [name for name, count in zip(dataset.class_names, counts, strict=True) if not count]
        if dataset.task is Task.SURVIVAL:
            missing = [name for name in missing if name == dataset.class_names[1]]
        if missing:
            raise DataError(
                f"dataset '{dataset.name}': no training sample of {', '.join(map(repr, missing))} among "
                f"{len(dataset.train)}; every class must occur in training: bring more samples of it, "
                "leave the class out, or split with another seed"
            )
    return dataset
