"""What a model's inputs and outputs are: kept with every run, so that a model can be used without its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wardround.datasets.base import Dataset, Task
from wardround.errors import DataError

__all__ = ["INPUTS", "ModelInputs"]

INPUTS = "inputs"
"""The key of a checkpoint under which they are kept, as JSON."""


@dataclass(frozen=True)
class ModelInputs:
    """Task, classes, shape of a sample, and how a raw table becomes samples."""

    task: str
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    feature_names: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    """`Schema.to_dict()`; None where the data is no table, or has no schema."""
    preprocessing: Mapping[str, Any] | None = None
    """`Preprocessing.to_dict()`; None: rows of `feature_names` are model input as they are."""

    @classmethod
    def of(cls, dataset: Dataset) -> ModelInputs:
        """Those of a dataset."""
        return cls(
            dataset.task.value,
            tuple(dataset.class_names),
            tuple(dataset.input_shape),
            tuple(dataset.feature_names),
            None if dataset.schema is None else dataset.schema.to_dict(),
            None if dataset.preprocessing is None else dataset.preprocessing.to_dict(),
        )

    @classmethod
    def from_shape(cls, shape: Mapping[str, Any]) -> ModelInputs:
        """Those that the hospitals of a federation agreed on (`Roster.shape`)."""
        return cls(
            shape["task"],
            tuple(shape["class_names"]),
            tuple(shape["input_shape"]),
            tuple(shape.get("feature_names") or ()),
            shape.get("schema"),
            shape.get("preprocessing"),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelInputs:
        """What `to_dict` gave, read back."""
        try:
            return cls.from_shape(values)
        except (KeyError, TypeError) as error:
            raise DataError(f"not a description of a model's inputs ({error})") from None

    @classmethod
    def from_json(cls, text: str) -> ModelInputs:
        """What `to_json` gave, read back."""
        return cls.from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())

    @property
    def is_table(self) -> bool:
        """Is a sample one row of named numbers?"""
        return len(self.input_shape) == 1

    @property
    def positive(self) -> str | None:
        """Of two classes the one whose probability is predicted; None for other tasks."""
        return self.class_names[1] if self.task == Task.BINARY.value else None
