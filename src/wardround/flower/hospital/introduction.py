"""How a hospital introduces itself: its name, its number of samples, whether its table fits the federation's schema.

Where the hospital's policy allows it, statistics of its columns go along (see `datasets.statistics`); no row does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wardround.datasets import Dataset, Task
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.datasets.statistics import MIN_COUNT
from wardround.errors import ConfigError, DataError, WardroundError
from wardround.flower.hospital.data import HospitalData, Share
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.messages import MIN_COUNT_KEY, SCHEMA_KEY, TABLE_KEY

__all__ = ["Unfit", "adopt_preprocessing", "describe_dataset", "introduce"]

LARGEST_FLOOR = 10**6


class Unfit(WardroundError):
    """The hospital's data do not fit what the server asks for.

    The message is for the hospital: it has the row. `for_server` is what the server is told.
    """

    def __init__(self, message: str, for_server: str) -> None:
        super().__init__(message)
        self.for_server = for_server


def describe_dataset(dataset: Dataset, samples: int) -> dict[str, Any]:
    """What data look like that are ready for a model."""
    return {
        "samples": samples,
        "task": dataset.task.value,
        "class_names": list(dataset.class_names),
        "input_shape": list(dataset.input_shape),
        "feature_names": list(dataset.feature_names),
    }


def introduce(data: HospitalData, head: Mapping[str, Any], policy: HospitalPolicy) -> dict[str, Any]:
    """What the hospital says of its data when the server asks. Raises `Unfit` where they do not fit the schema."""
    floor = max(_floor(head), policy.min_reported)
    if SCHEMA_KEY in head:
        schema, share = _fit(data, head[SCHEMA_KEY], policy)
        words = _describe_schema(schema, share)
        if share.dataset.raw is not None and policy.reports_statistics:
            words[TABLE_KEY] = {
                "label": schema.label.name,
                "statistics": data.describe(share, floor).to_dict(),
            }
        return words
    description = data.describe_without_schema(floor)
    share = data.share
    if description is None:
        return describe_dataset(share.dataset, len(share.train_rows))
    table: dict[str, Any] = {"label": description.label}
    if policy.reports_statistics:
        table["statistics"] = description.statistics.to_dict()
    return {"samples": description.statistics.rows, TABLE_KEY: table}


def adopt_preprocessing(data: HospitalData, values: Any, policy: HospitalPolicy) -> Share:
    """The hospital's samples as an order's preprocessing has them. Raises `Unfit` where that cannot be."""
    try:
        preprocessing = Preprocessing.from_dict(values)
    except ConfigError as error:
        raise Unfit(f"the order's {error}", "the order's preprocessing cannot be read") from None
    return _checked(data, lambda: data.prepare(preprocessing), policy)


def _fit(data: HospitalData, values: Any, policy: HospitalPolicy) -> tuple[Schema, Share]:
    try:
        schema = Schema.from_dict(values, "the federation's schema")
    except ConfigError as error:
        raise Unfit(str(error), "the schema cannot be read") from None
    return schema, _checked(data, lambda: data.load(schema), policy)


def _checked(data: HospitalData, load: Callable[[], Share], policy: HospitalPolicy) -> Share:
    try:
        return load()
    except SchemaMismatch as mismatch:
        told = mismatch.describe(show_value=policy.report_values, show_row=False)
        raise Unfit(
            f"the data do not fit the federation's schema: {mismatch}", f"its data do not fit: {told}"
        ) from None
    except (ConfigError, DataError) as error:
        raise Unfit(str(error), "its data cannot be read; its own log says why") from None


def _describe_schema(schema: Schema, share: Share) -> dict[str, Any]:
    classes, features = schema.label.classes, schema.feature_names
    return {
        "samples": len(share.train_rows),
        "task": (Task.BINARY if len(classes) == 2 else Task.MULTICLASS).value,
        "class_names": list(classes),
        "input_shape": [len(features)],
        "feature_names": list(features),
    }


def _floor(head: Mapping[str, Any]) -> int:
    asked = head.get(MIN_COUNT_KEY, MIN_COUNT)
    whole = isinstance(asked, int) and not isinstance(asked, bool)
    return asked if whole and 1 <= asked <= LARGEST_FLOOR else MIN_COUNT
