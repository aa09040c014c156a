"""A hospital's samples, in the columns and scales that its federation has agreed on.

What the files hold is read here. A schema or preprocessing comes from the server; it changes how the hospital's columns
are read, never what leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wardround import datasets
from wardround.datasets import Dataset, DatasetSource, Split, Task, partition
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.statistics import TableStatistics, describe_table
from wardround.datasets.table_source import TableSource
from wardround.datasets.tabular import preprocessed, split_rows
from wardround.errors import ConfigError
from wardround.training.base import ClientData

__all__ = ["HospitalData", "Share", "TableDescription"]


@dataclass(frozen=True, eq=False)
class Share:
    """The samples that one hospital holds."""

    dataset: Dataset
    train_rows: np.ndarray
    test_rows: np.ndarray

    def data(self) -> ClientData:
        """Its training samples."""
        rows = torch.from_numpy(self.train_rows)
        return ClientData(self.dataset.train.inputs, rows, self.dataset.train.targets[rows])


@dataclass(frozen=True)
class TableDescription:
    """What a hospital may say about its table before there is a schema for all."""

    statistics: TableStatistics
    label: str
    time: str | None = None
    """The column of times of a survival task, whose events `label` has."""


class HospitalData:
    """The data of one hospital; loads them when it is built, and again when their files have changed."""

    def __init__(
        self,
        section: Mapping[str, Any],
        seed: int,
        dealt: Mapping[str, Any] | None = None,
        part: int | None = None,
    ) -> None:
        """`section`: the hospital's `dataset:`. `dealt` and `part`: its `partition:` and `part:`, in trials."""
        params = dict(section)
        self.source: DatasetSource = datasets.create(params.pop("name"), **params)
        self.seed, self.dealt, self.part = seed, dealt, part
        self._files = self._signature()
        self._loaded: tuple[str, Share] | None = None
        self._prepared: tuple[str, Share] | None = None
        self.share = self._first_share()
        """As the hospital's own configuration describes them."""

    def _first_share(self) -> Share:
        source = self.source
        if not isinstance(source, TableSource):
            return self._share(source.load(self.seed))
        if (schema := source.params.given_schema()) is not None:
            return self._share(source.load_as(schema, self.seed))
        if source.needs_schema:  # what is in the columns, the federation's schema will say
            return _unread(source.name, source.count_rows())
        table, classes = source.read_table()
        return self._share(source.load(self.seed)) if len(classes) > 1 else _unread(source.name, len(table))

    def _share(self, dataset: Dataset) -> Share:
        if self.dealt is None:
            return Share(dataset, np.arange(len(dataset.train)), np.arange(len(dataset.test)))
        params = dict(self.dealt)
        dealer = partition.create(params.pop("name"), **params)
        assignment = dealer.assign(dataset.train, dataset.test, self.seed)
        assert self.part is not None  # the configuration was checked
        return Share(dataset, assignment.train[self.part], assignment.test[self.part])

    def load(self, schema: Schema) -> Share:
        """The samples in the columns of a schema. Raises `SchemaMismatch` with what does not fit."""
        self._look_at_files()
        if self._loaded is None or self._loaded[0] != schema.hash:
            known = self.share.dataset.schema
            fits = known is not None and known.hash == schema.hash
            self._loaded = (
                schema.hash,
                self.share if fits else self._share(self.source.load_as(schema, self.seed)),
            )
        return self._loaded[1]

    def prepare(self, preprocessing: Preprocessing) -> Share:
        """The samples as a federation preprocesses them; with `scale: local` by this hospital's own statistics."""
        self._look_at_files()
        if self._prepared is None or self._prepared[0] != preprocessing.hash:
            share = self.load(preprocessing.schema)
            own = preprocessing
            if preprocessing.params.scale == "local":
                own = preprocessing.with_scale_of(self.describe(share, own.params.min_count))
            ready = Share(preprocessed(share.dataset, own), share.train_rows, share.test_rows)
            self._prepared = (preprocessing.hash, ready)
        return self._prepared[1]

    def describe(self, share: Share, min_count: int) -> TableStatistics:
        """Statistics of the training rows."""
        raw = share.dataset.raw
        assert raw is not None  # only tables are described
        return describe_table(raw.table, raw.parts[0][share.train_rows], share.dataset.class_names, min_count)

    def describe_without_schema(self, min_count: int) -> TableDescription | None:
        """What the table looks like by the hospital's own options; None where the data are no table."""
        self._look_at_files()
        source, raw = self.source, self.share.dataset.raw
        if isinstance(source, TableSource) and raw is None:
            if source.needs_schema:
                raise ConfigError(
                    "the hospital's table has no label (dataset.label) and the federation gives no schema"
                )
            table, classes = source.read_table()
            rows = split_rows(table, self.seed)[0]
            statistics = describe_table(table, rows, classes, min_count)
            return TableDescription(statistics, str(source.label), source.params.time)
        if raw is None:
            return None
        return TableDescription(self.describe(self.share, min_count), raw.label.name, raw.label.time)

    def _signature(self) -> tuple[tuple[str, float, int], ...]:
        """Name, time and size of the hospital's own files."""
        return self.source.signature() if isinstance(self.source, TableSource) else ()

    def _look_at_files(self) -> None:
        """Read the files again where they have changed: a hospital may fix its data while the server runs."""
        if (signature := self._signature()) != self._files:
            self._files, self._loaded, self._prepared = signature, None, None
            self.share = self._first_share()


def _unread(name: str, rows: int) -> Share:
    """The place of samples that cannot be read before there is a schema."""
    without_columns = Split(torch.empty((rows, 0)), torch.zeros(rows, dtype=torch.int64))
    dataset = Dataset(name, Task.BINARY, (), without_columns, without_columns, without_columns)
    return Share(dataset, np.arange(rows), np.arange(rows))
