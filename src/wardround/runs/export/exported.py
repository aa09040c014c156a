"""An exported model, read back: hashes checked, ready to predict. Needs nothing but its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wardround.datasets.base import Task
from wardround.datasets.csv_files import MISSING, numbers
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import Cells
from wardround.errors import ConfigError, DataError, ParameterError, did_you_mean
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.manifest import (
    FILES,
    MANIFEST,
    PREPROCESSING,
    SCHEMA,
    SIGNATURE,
    WEIGHTS,
    Manifest,
    check_files,
    weights_hash,
)
from wardround.runs.export.network import load_weights, network_of, probabilities, weights_from_bytes
from wardround.updates import Layout

__all__ = ["ExportedModel", "Predictions", "parse_model", "read_model_folder"]

BATCH = 4096
RISK = "risk"
"""What a survival model says of a row."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of the rows of a table."""

    probabilities: np.ndarray
    """n × 1 for a binary task (of the positive class), else n × classes. Of a survival task n × 1 risk scores: log
    hazards, of which only differences mean something."""
    class_names: tuple[str, ...]
    """Of the columns of `probabilities`."""
    labels: tuple[str, ...]
    """The predicted class of each row; of a multi-label task the findings, separated by `;`. Survival: none."""


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model folder whose files are those that its manifest lists."""

    manifest: Manifest
    inputs: ModelInputs
    network: nn.Module
    weights: Tensor

    @classmethod
    def load(cls, folder: Path) -> ExportedModel:
        """Read a model folder; what is missing or was changed is an error."""
        return parse_model(read_model_folder(folder), folder)

    def predict(self, samples: np.ndarray | Tensor) -> Tensor:
        """Probabilities (log hazards of a survival task) of samples as the network takes them: n × … in, n × outputs
        out."""
        tensor = torch.as_tensor(samples, dtype=torch.float32)
        if tuple(tensor.shape[1:]) != self.inputs.input_shape:
            raise DataError(
                f"samples of shape {list(tensor.shape[1:])}, where the model takes {list(self.inputs.input_shape)}"
            )
        with torch.no_grad():
            logits = torch.cat([self.network(batch) for batch in tensor.split(BATCH)])
        return probabilities(logits, self.inputs.task)

    def predict_table(self, columns: Mapping[str, Sequence[str]], where: str) -> Predictions:
        """Probabilities and classes for a table with raw columns.

        Args:
            columns: column name → cells as they are in a file.
            where: the file, for messages.

        Raises:
            DataError: a column is missing or a cell does not fit; says which, and what was expected.
        """
        return self._named(self.predict(self._samples(columns, where)).double().numpy())

    def known_columns(self) -> tuple[str, ...]:
        """The columns of a raw table that the model knows: those that a prediction depends on, and the label."""
        preprocessing = self.preprocessing
        if preprocessing is None:
            return self.inputs.feature_names
        schema = preprocessing.schema
        outcome = (schema.label.name, *filter(None, (schema.label.time,)))
        return (*(column.name for column in schema.columns), *outcome)

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """From raw columns to what the network takes; None: the columns of a table are the network's inputs."""
        values = self.inputs.preprocessing
        return None if values is None else Preprocessing.from_dict(values, PREPROCESSING)

    @property
    def scales_apart(self) -> bool:
        """Did every hospital scale its numbers by itself in training? No table is then scaled as all of theirs were."""
        return self.preprocessing is not None and self.preprocessing.params.scale == "local"

    def _samples(self, columns: Mapping[str, Sequence[str]], where: str) -> np.ndarray:
        inputs = self.inputs
        if not inputs.is_table:
            shape = " × ".join(map(str, inputs.input_shape))
            raise ConfigError(
                f"predict is for tables; this model takes samples of shape {shape}: use its model.onnx, or "
                "ExportedModel.load(folder).predict(samples) in Python"
            )
        if self.preprocessing is not None:
            return self.preprocessing.transform(_with_dates(columns, self.preprocessing.schema, where), where)
        if not inputs.feature_names:
            raise ConfigError("this model's inputs have no names: no table can be matched to them")
        cells: list[np.ndarray] = []
        for name in inputs.feature_names:
            if name not in columns:
                raise DataError(
                    f"{where}: no column '{name}', expected a number; {did_you_mean(name, columns)}"
                )
            cells.append(numbers(list(columns[name]), name, Path(where), "; expected a number"))
            if np.isnan(cells[-1]).any():
                row = int(np.isnan(cells[-1]).argmax()) + 1
                raise DataError(
                    f"{where}: column '{name}' is empty in row {row}, expected a number: the model was exported "
                    "without preprocessing, so that nothing fills gaps"
                )
        return np.column_stack(cells).astype(np.float32)

    def _named(self, shares: np.ndarray) -> Predictions:
        manifest, inputs = self.manifest, self.inputs
        names = inputs.class_names
        if inputs.task == Task.SURVIVAL.value:
            return Predictions(shares, (RISK,), ())
        if inputs.positive is not None:
            cut = manifest.thresholds[inputs.positive]
            labels = [names[int(share > cut)] for share in shares[:, 0]]
            return Predictions(shares, (inputs.positive,), tuple(labels))
        if inputs.task == Task.MULTILABEL.value:
            cuts = [manifest.thresholds[name] for name in names]
            found = [
                ";".join(name for name, share, cut in zip(names, row, cuts, strict=True) if share > cut)
                for row in shares
            ]
            return Predictions(shares, names, tuple(found))
        return Predictions(shares, names, tuple(names[index] for index in shares.argmax(1)))


def _with_dates(columns: Mapping[str, Sequence[str]], schema: Schema, where: str) -> dict[str, Cells]:
    """The columns with dates as the numbers that training had: days since 1970. Other cells stay as they are."""
    result: dict[str, Cells] = dict(columns)
    for column in schema.numbers:
        cells = columns.get(column.name)
        if cells is not None and not all(_is_number(cell) for cell in cells):
            with suppress(DataError):  # what is neither a number nor a date is explained by the schema
                result[column.name] = numbers(list(cells), column.name, Path(where))
    return result


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in MISSING
    return True


def read_model_folder(folder: Path) -> dict[str, bytes]:
    """File name → content of a model folder; files that do not belong to one are left alone."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ConfigError(
            f"{folder}: not an exported model (no {MANIFEST} in it); make one by `wardround export`"
        )
    try:
        known = (MANIFEST, SIGNATURE, *FILES)
        return {name: (folder / name).read_bytes() for name in known if (folder / name).is_file()}
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None


def parse_model(files: Mapping[str, bytes], where: object) -> ExportedModel:
    """A model out of the content of its files.

    Raises:
        DataError: the files are not those that the manifest lists, or do not fit each other.
    """
    manifest = Manifest.from_bytes(files.get(MANIFEST, b""), f"{where}: {MANIFEST}")
    check_files(manifest, files, where)
    named = manifest.class_names[1:] if manifest.task == Task.BINARY.value else manifest.class_names
    if Task(manifest.task).has_thresholds and set(named) != set(manifest.thresholds):
        raise DataError(f"{where}: {MANIFEST} has no threshold for each of {', '.join(named)}")
    inputs = ModelInputs(
        manifest.task,
        manifest.class_names,
        manifest.input_shape,
        manifest.feature_names,
        _read_json(files[SCHEMA], f"{where}: {SCHEMA}"),
        _read_json(files[PREPROCESSING], f"{where}: {PREPROCESSING}"),
    )
    try:
        network = network_of(manifest)
    except ParameterError as error:
        raise ConfigError(f"{where}: {error} (a model of a plug-in needs --plugin)") from None
    layout = Layout.of(network)
    weights = weights_from_bytes(files[WEIGHTS], layout, f"{where}: {WEIGHTS}")
    if weights_hash(weights) != manifest.weights:
        raise DataError(f"{where}: the weights in {WEIGHTS} are not those that the manifest names")
    return ExportedModel(manifest, inputs, load_weights(network, weights), weights)


def _read_json(content: bytes, where: str) -> dict[str, Any] | None:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if values is not None and not isinstance(values, dict):
        raise DataError(f"{where}: expected a JSON object")
    return values
