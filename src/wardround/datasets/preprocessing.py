"""From raw columns to model input: fitted from clients' statistics, applied everywhere, saved with the model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import Cells, conform
from wardround.datasets.statistics import (
    MIN_COUNT,
    NumberStatistics,
    TableStatistics,
    merge_numbers,
)
from wardround.datasets.table import Table
from wardround.errors import ConfigError
from wardround.registry import Parameters, explain

__all__ = [
    "Preprocessing",
    "PreprocessingParams",
    "Scaling",
    "Table",
    "fit_preprocessing",
]

VERSION = 1
LARGEST_NUMBER = 1e30


class PreprocessingParams(Parameters):
    """How tables become model input. Levels, gaps and scales come from what clients say of their training rows."""

    scale: Literal["federation", "local", "none"] = "federation"
    """By whose mean and deviation numbers are standardised: all clients' together, each client's own, nobody's."""
    impute: Literal["median", "mean", "zero"] = "median"
    """What a missing number becomes, before it is standardised."""
    min_count: int = Field(MIN_COUNT, ge=1)
    """The disclosure floor: a client does not speak of fewer patients than this (levels, classes, values)."""


@dataclass(frozen=True)
class Scaling:
    """One column of numbers: x → (x − centre) / scale, and a gap is filled with `fill` first."""

    fill: float
    centre: float
    scale: float


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """A fitted preprocessing: raw columns in, float32 features out."""

    schema: Schema
    params: PreprocessingParams
    scaling: Mapping[str, Scaling]
    """Column of numbers → its scaling."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One per feature, in order."""
        return self.schema.feature_names

    @property
    def hash(self) -> str:
        """The same for the same preprocessing."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def transform(self, table: Table | Mapping[str, Cells], where: str = "table") -> np.ndarray:
        """Model input.

        Args:
            table: A typed table, or raw columns (name → cells, as words or numbers), which are checked first.
            where: Opens error messages: the file's name.

        Returns:
            rows × features, float32. A level that the schema does not list is none of its features.
        """
        if isinstance(table, Table):
            numeric, categorical, rows = table.numeric, table.categorical, len(table)
        else:
            conformed = conform(table, self.schema, where, with_label=False)
            numeric, categorical = conformed.numeric, conformed.categorical
            rows = len(next(iter(table.values()), ()))
        features = np.empty((rows, len(self.feature_names)), dtype=np.float32)
        place = 0
        for column in self.schema.numbers:
            features[:, place] = self._scaled(column.name, numeric.get(column.name), rows)
            place += 1
        for column in self.schema.categories:
            words = categorical.get(column.name)
            words = np.full(rows, "", dtype=object) if words is None else words
            for level in (*column.levels, *([""] if column.missing else [])):
                features[:, place] = words == level
                place += 1
        return features

    def _scaled(self, name: str, values: np.ndarray | None, rows: int) -> np.ndarray:
        scaling = self.scaling[name]
        known = np.full(rows, np.nan) if values is None else np.asarray(values, dtype=float)
        filled = np.where(np.isnan(known), scaling.fill, known)
        scaled: np.ndarray = (filled - scaling.centre) / scaling.scale
        return scaled

    def with_scale_of(self, statistics: TableStatistics) -> Preprocessing:
        """The same columns and levels, but numbers scaled as one client's own values are (where it has any)."""
        own = {
            name: _scaling([column], self.params)
            for name, column in statistics.columns.items()
            if name in self.scaling and isinstance(column, NumberStatistics) and column.count
        }
        return replace(self, scaling={**self.scaling, **own})

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what is saved and sent."""
        return {
            "version": VERSION,
            "schema": self.schema.to_dict(),
            **self.params.plain(),
            "scaling": {
                name: {"fill": one.fill, "centre": one.centre, "scale": one.scale}
                for name, one in self.scaling.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "preprocessing") -> Preprocessing:
        """What `to_dict` gave; whatever is wrong with it is one line of error."""
        try:
            own = dict(values)
            if own.pop("version") != VERSION:
                raise ConfigError(f"{where}: of another version of this program")
            schema = Schema.from_dict(own.pop("schema"), f"{where}: schema")
            scaling = {
                name: Scaling(**{key: float(value) for key, value in one.items()})
                for name, one in own.pop("scaling").items()
            }
            params = PreprocessingParams(**own)
        except ValidationError as error:
            raise ConfigError(f"{where}: {explain(error, PreprocessingParams)}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{where}: not what this program saves ({type(error).__name__}: {error})"
            ) from None
        if set(scaling) != {column.name for column in schema.numbers}:
            raise ConfigError(f"{where}: scaling and schema have other columns of numbers")
        for name, one in scaling.items():
            numbers = (one.fill, one.centre, one.scale, 1 / one.scale if one.scale else math.inf)
            if not one.scale > 0 or not all(abs(number) <= LARGEST_NUMBER for number in numbers):
                raise ConfigError(
                    f"{where}: column '{name}' cannot be scaled by {one.scale:g} around {one.centre:g}"
                )
        return cls(schema, params, scaling)


def fit_preprocessing(
    schema: Schema, clients: Sequence[TableStatistics], params: PreprocessingParams
) -> Preprocessing:
    """The preprocessing of a federation, from what its clients say of their training rows; no row is seen."""
    scaling = {}
    for column in schema.numbers:
        said = [client.columns.get(column.name) for client in clients]
        scaling[column.name] = _scaling([one for one in said if isinstance(one, NumberStatistics)], params)
    return Preprocessing(schema, params, scaling)


def _scaling(clients: Sequence[NumberStatistics], params: PreprocessingParams) -> Scaling:
    merged = merge_numbers(clients)
    fill = {"median": merged.median, "mean": merged.centre, "zero": 0.0}[params.impute]
    if params.scale == "none":
        return Scaling(fill, 0.0, 1.0)
    return Scaling(fill, merged.centre, merged.scale)
