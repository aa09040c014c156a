"""A run that begins from an exported model: `initial_model:` in its configuration.

The exported preprocessing is used as it is: weights mean something only for inputs that are scaled as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from torch import nn

from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.tabular import adopt, conformed_dataset, prepare_for_clients
from wardround.errors import ConfigError
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.manifest import MANIFEST
from wardround.runs.export.network import load_weights
from wardround.updates import Layout

__all__ = ["KEY", "InitialModel", "anchored"]

KEY = "initial_model"


class InitialModel(BaseModel):
    """An exported model as a configuration records it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """The absolute path of its folder."""
    sha256: str
    """Of its manifest, which has the hashes of all its files: what is part of a run's identity."""

    @classmethod
    def read(cls, value: Any) -> InitialModel | None:
        """What a configuration says: nothing, a path, or what an earlier run recorded."""
        if value is None or isinstance(value, InitialModel):
            return value
        recorded = value.get("sha256") if isinstance(value, Mapping) else None
        path = value.get("path") if isinstance(value, Mapping) else value
        if not isinstance(path, str | Path):
            raise ConfigError(f"{KEY}: expected the folder of an exported model, got {value!r:.60}")
        folder = Path(path).absolute()
        try:
            digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
        except OSError:
            raise ConfigError(
                f"{KEY}: {path} is not an exported model (no {MANIFEST} in it); make one by `wardround export`"
            ) from None
        if recorded not in (None, digest):
            raise ConfigError(f"{KEY}: {path} holds another model than when the run was begun")
        return cls(path=str(folder), sha256=digest)

    def load(self) -> ExportedModel:
        """The model, with its hashes checked."""
        try:
            return ExportedModel.load(Path(self.path))
        except ConfigError as error:
            raise ConfigError(f"{KEY}: {error}") from None

    def prepare(self, dataset: Dataset, assignment: Assignment, seed: int) -> Dataset:
        """The dataset with the exported model's columns, levels, classes and scaling.

        A table whose hospitals each scale by themselves (`scale: local`) keeps the columns and levels alone.
        """
        preprocessing = self.load().preprocessing
        if preprocessing is None or dataset.raw is None:
            return dataset
        if preprocessing.params.scale == "local":
            own = conformed_dataset(dataset, preprocessing.schema, seed)
            return prepare_for_clients(
                own, assignment.clients, assignment.train, preprocessing.params, assignment.test
            )
        return adopt(dataset, preprocessing, seed)

    def preprocessing(self) -> Preprocessing | None:
        """The exported preprocessing; None where the model has none."""
        return self.load().preprocessing

    def start(self, network: nn.Module, inputs: ModelInputs) -> None:
        """Give a run's network the exported weights.

        Args:
            network: as the run's configuration builds it.
            inputs: what the run's data look like.

        Raises:
            ConfigError: it is another network, or for other data; says what differs.
        """
        exported = self.load()
        for name in ("task", "class_names", "input_shape", "feature_names"):
            theirs, ours = getattr(exported.inputs, name), getattr(inputs, name)
            if theirs != ours:
                raise ConfigError(
                    f"{KEY}: {self.path} has other {name.replace('_', ' ')}: {_differ(theirs, ours)}"
                )
        theirs, ours = Layout.of(exported.network), Layout.of(network)
        shapes = dict(zip(theirs.names, theirs.shapes, strict=True))
        for name, shape in zip(ours.names, ours.shapes, strict=True):
            if shapes.pop(name, None) != shape:
                raise ConfigError(
                    f"{KEY}: {self.path} is another network: '{name}' has shape {list(shape)} here; it was exported "
                    f"with model {dict(exported.manifest.model)}"
                )
        if shapes:
            raise ConfigError(
                f"{KEY}: {self.path} is another network: '{next(iter(shapes))}' is not part of this one"
            )
        mode = network.training
        load_weights(network, exported.weights)
        network.train(mode)


def anchored(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration (or a matrix of some) whose initial model is seen from `folder`.

    >>> anchored({"initial_model": "model", "base": {"initial_model": "/a"}}, Path("/study"))
    {'initial_model': '/study/model', 'base': {'initial_model': '/a'}}
    """
    result = dict(values)
    if isinstance(values.get(KEY), str):
        result[KEY] = str(folder.absolute() / values[KEY])
    if isinstance(base := values.get("base"), Mapping):
        result["base"] = anchored(base, folder)
    return result


def _differ(theirs: Any, ours: Any) -> str:
    """The first difference between two descriptions."""
    if isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
        for one, other in zip(theirs, ours, strict=True):
            if one != other:
                return f"{one!r:.60} where the run has {other!r:.60}"
    return f"{theirs!r:.120} where the run has {ours!r:.120}"
