"""Tables as datasets: split by patient, and turned into model input once it is known who holds which row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from wardround.datasets.agreement import agree_on_columns
from wardround.datasets.base import Dataset, RawTable, Split, Task, check_classes, split_units
from wardround.datasets.patient_groups import groups_of_rows
from wardround.datasets.preprocessing import (
    Preprocessing,
    PreprocessingParams,
    fit_preprocessing,
)
from wardround.datasets.schema import Column, Label, Schema
from wardround.datasets.schema_check import conform
from wardround.datasets.statistics import TableStatistics, describe_table
from wardround.datasets.table import Table
from wardround.datasets.targets import classes_of
from wardround.errors import DataError

__all__ = [
    "adopt",
    "built_in_schema",
    "conformed_dataset",
    "prepare_for_clients",
    "preprocessed",
    "split_rows",
    "tabular_dataset",
]


def built_in_schema(
    numbers: Sequence[str],
    levels: Mapping[str, Sequence[str]],
    label: str,
    class_names: Sequence[str],
    with_gaps: Collection[str] = (),
    time: str | None = None,
) -> Schema:
    """The schema of a dataset whose columns are known in advance.

    `with_gaps`: categories that may be empty. `time`: the column of times of a survival task.
    """
    columns = [Column(name=name) for name in numbers]
    columns += [
        Column(name=name, type="category", levels=tuple(words), other=True, missing=name in with_gaps)
        for name, words in levels.items()
    ]
    return Schema(columns=tuple(columns), label=Label(name=label, classes=tuple(class_names), time=time))


def split_rows(table: Table, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row numbers of train, validation and test, by patient."""
    if not table.split_apart:
        return split_units(table.units, seed)
    groups = np.asarray(table.groups)
    parts: list[list[np.ndarray]] = [[], [], []]
    for group in dict.fromkeys(groups.tolist()):
        own = np.flatnonzero(groups == group)
        for part, rows in zip(
            parts, split_units([table.units[row] for row in own.tolist()], seed), strict=True
        ):
            part.append(own[rows])
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, validation, test


def tabular_dataset(
    name: str,
    task: Task,
    class_names: tuple[str, ...],
    table: Table,
    seed: int,
    schema: Schema | None = None,
    label: str = "label",
    check: bool = True,
    time: str | None = None,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> Dataset:
    """A table as a dataset, preprocessed as if one client held all training rows (see `prepare_for_clients`).

    Without a schema, columns and levels are those that the clients' statistics agree on; `label` and `time` (of a
    survival task) are then the names of the columns that `targets` came from. `check`: every class must occur in
    training. `parts`: rows of the three splits, where they are not drawn by the seed.
    """
    parts = split_rows(table, seed) if parts is None else parts
    targets = torch.from_numpy(np.asarray(table.targets))
    nothing = torch.empty((len(table), 0), dtype=torch.float32)
    groups = None if table.groups is None else np.asarray(table.groups, dtype=object)
    train, validation, test = (
        Split(
            nothing[rows],
            targets[rows],
            None if groups is None else tuple(groups[rows]),
            groups_of_rows(table.patient_groups, rows),
        )
        for rows in parts
    )
    own_label = Label(name=label, classes=class_names, time=time) if schema is None else schema.label
    raw = RawTable(table, parts, own_label, schema)
    dataset = Dataset(name, task, class_names, train, validation, test, facts=table.facts, raw=raw)
    everything = np.arange(len(parts[0]))
    if check:
        check_classes(dataset)
    return prepare_for_clients(dataset, ["everybody"], [everything], PreprocessingParams())


def conformed_dataset(dataset: Dataset, schema: Schema, seed: int) -> Dataset:
    """A table dataset in the columns, levels and classes of a schema; what does not fit is a `SchemaMismatch`."""
    raw = dataset.raw
    if raw is None:
        raise DataError(f"dataset '{dataset.name}' is no table: a schema is for tables")
    targets = np.asarray(raw.table.targets)
    words = np.array(dataset.class_names, dtype=object)[classes_of(targets)]
    columns = {**raw.table.numeric, **raw.table.categorical, raw.label.name: words}
    if raw.label.time is not None:
        columns[raw.label.time] = np.abs(targets)
    conformed = conform(columns, schema, f"dataset '{dataset.name}'")
    assert conformed.targets is not None
    table = replace(
        raw.table,
        numeric=conformed.numeric,
        categorical=conformed.categorical,
        targets=conformed.targets,
    )
    task = Task.of_label(schema.label)
    return tabular_dataset(
        dataset.name, task, schema.label.classes, table, seed, schema, check=False, parts=raw.parts
    )


def preprocessed(dataset: Dataset, preprocessing: Preprocessing) -> Dataset:
    """The dataset with another preprocessing of its table."""
    raw = dataset.raw
    assert raw is not None  # only tables are preprocessed
    features = torch.from_numpy(preprocessing.transform(raw.table))
    train, validation, test = (
        replace(split, inputs=features[rows])
        for split, rows in zip((dataset.train, dataset.validation, dataset.test), raw.parts, strict=True)
    )
    return replace(
        dataset,
        train=train,
        validation=validation,
        test=test,
        schema=preprocessing.schema,
        preprocessing=preprocessing,
        feature_names=preprocessing.feature_names,
    )


def adopt(dataset: Dataset, preprocessing: Preprocessing, seed: int) -> Dataset:
    """A table dataset as somebody else's preprocessing has it, `scale: local` by its own training rows."""
    known = None if dataset.raw is None else dataset.raw.schema
    same = known is not None and known.hash == preprocessing.schema.hash
    table = dataset if same else conformed_dataset(dataset, preprocessing.schema, seed)
    assert table.raw is not None
    if preprocessing.params.scale == "local":
        raw, floor = table.raw, preprocessing.params.min_count
        preprocessing = preprocessing.with_scale_of(
            describe_table(raw.table, raw.parts[0], table.class_names, floor)
        )
    return preprocessed(table, preprocessing)


def prepare_for_clients(
    dataset: Dataset,
    clients: Sequence[str],
    train_rows: Sequence[np.ndarray],
    params: PreprocessingParams,
    test_rows: Sequence[np.ndarray] = (),
) -> Dataset:
    """The dataset as a federation of these clients would preprocess it: from what each says of its training rows.

    Args:
        dataset: Of any kind; one that is no table is returned as it is.
        clients: Their names.
        train_rows: Each client's rows of the training split.
        params: The configuration's `preprocessing:` section.
        test_rows: Each client's rows of the test split, which `scale: local` scales as the client's own.
    """
    raw = dataset.raw
    if raw is None:
        return dataset
    said: dict[str, TableStatistics] = {
        client: describe_table(raw.table, raw.parts[0][rows], dataset.class_names, params.min_count)
        for client, rows in zip(clients, train_rows, strict=True)
    }
    schema = raw.schema or agree_on_columns(said, raw.label)
    preprocessing = fit_preprocessing(schema, list(said.values()), params)
    prepared = preprocessed(dataset, preprocessing)
    if params.scale == "local":
        for number, client in enumerate(clients):
            own = preprocessing.with_scale_of(said[client])
            _rescale(prepared.train, raw.table, raw.parts[0], train_rows[number], own)
            if number < len(test_rows):
                _rescale(prepared.test, raw.table, raw.parts[2], test_rows[number], own)
    return prepared


def _rescale(split: Split, table: Table, part: np.ndarray, rows: np.ndarray, own: Preprocessing) -> None:
    split.inputs[torch.from_numpy(rows)] = torch.from_numpy(own.transform(table.select(part[rows])))
