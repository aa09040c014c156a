"""What a server needs on its own side, tried out before it waits for hospitals: its data, rule and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from wardround import datasets
from wardround.datasets import Dataset
from wardround.datasets.table_source import TableSource
from wardround.federation.model_factory import build_model
from wardround.federation.server_data import ServerData
from wardround.flower.config import FederationConfig
from wardround.runs.runner import build_rule, build_schedule, load_dataset
from wardround.updates import Layout

__all__ = ["Checked", "Shape", "check_server_side", "known_shape", "load_server_dataset"]


class Shape(NamedTuple):
    """What a model takes and gives."""

    input_shape: tuple[int, ...]
    task: str
    classes: int


@dataclass(frozen=True)
class Checked:
    """What was found."""

    data: str | None
    """The server's own samples, in words; None where it has none."""
    weights: int | None
    """Of the model; None where only the hospitals' data say how large it is."""


def load_server_dataset(config: FederationConfig) -> Dataset:
    """The server's own samples; a table in the columns of the federation's schema, where there is one."""
    schema = config.federation.given_schema()
    name, params = config.run.section("dataset")
    if schema is None or not issubclass(datasets.registry.get(name), TableSource):
        return load_dataset(config.run)
    return datasets.create(name, **params).load_as(schema, config.run.seed)


def known_shape(config: FederationConfig, dataset: Dataset | None = None) -> Shape | None:
    """What the model takes and gives, where that is known before hospitals say it."""
    if dataset is not None:
        return Shape(tuple(dataset.input_shape), dataset.task.value, len(dataset.class_names))
    schema = config.federation.given_schema()
    if schema is None:
        return None
    task = "binary" if len(schema.label.classes) == 2 else "multi-class"
    return Shape((len(schema.feature_names),), task, len(schema.label.classes))


def check_server_side(config: FederationConfig, dataset: Dataset | None = None) -> Checked:
    """Build what needs no hospital; raises what would otherwise end the run after all have joined."""
    run = config.run
    if dataset is None and config.has_dataset:
        dataset = load_server_dataset(config)
    data = None
    if dataset is not None:
        own = ServerData(dataset, build_rule(run), build_schedule(run))
        root = "" if own.root is None else f", {len(own.root)} of them trusted root samples"
        data = f"'{dataset.name}': {len(dataset.validation)} validation samples{root}, {len(dataset.test)} for tests"
    shape = known_shape(config, dataset)
    if shape is None:
        return Checked(data, None)
    model = build_model(run.model, shape.input_shape, shape.task, shape.classes, run.seed, run.privacy.dp)
    return Checked(data, Layout.of(model).size)
