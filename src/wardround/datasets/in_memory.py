"""Rows that a Python program has handed over, in a configuration that names them by their hash.

The rows themselves are not written anywhere: they may be patients'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wardround.datasets.base import (
    Dataset,
    DatasetSource,
    Parameters,
    Split,
    Task,
    check_classes,
    register,
    split_units,
)
from wardround.datasets.table import Table
from wardround.datasets.tabular import tabular_dataset
from wardround.errors import DataError

__all__ = ["IN_MEMORY", "InMemory", "Rows", "hold_rows", "join_columns"]

IN_MEMORY = "in-memory"


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of one client, or of nobody yet."""

    inputs: Tensor
    """n × …, float32."""
    targets: Tensor
    """Class indices (int64, n), or n × L zeros and ones (float32)."""
    columns: Mapping[str, np.ndarray] | None = None
    """Of a raw table, instead of `inputs`: numbers (NaN where missing) or words ("" where missing)."""


@dataclass(frozen=True, eq=False)
class _Held:
    clients: dict[str | None, Rows]
    task: Task
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]


_held: dict[str, list[_Held]] = {}


@register(IN_MEMORY)
class InMemory(DatasetSource):
    """The rows that `wardround.simulate(clients=…)` was given. Nobody else can load them.

    Each client's rows are split 70/10/20 by the seed, as each hospital of a federation splits its own file.
    """

    task = Task.BINARY
    summary = "rows of your own Python program"
    licence = "yours"
    origin = "you"
    listed = False

    class Params(Parameters):
        sha256: str
        """Of the rows, their labels and whose they are."""
        rows: int
        task: Task

    params: Params

    def load(self, seed: int) -> Dataset:
        holders = _held.get(self.params.sha256)
        if not holders:
            raise DataError(
                f"dataset '{IN_MEMORY}': its rows live in the Python program that ran this; "
                "call wardround.simulate there"
            )
        held = holders[-1]
        if any(rows.columns is not None for rows in held.clients.values()):
            return self._load_table(held, seed)
        parts: tuple[list[tuple[str | None, Rows]], ...] = ([], [], [])
        for client, rows in held.clients.items():
            for part, chosen in zip(parts, split_units(np.arange(len(rows.targets)), seed), strict=True):
                part.append((client, Rows(rows.inputs[chosen], rows.targets[chosen])))
        named = None not in held.clients
        train, validation, test = (_joined(part, named) for part in parts)
        if not len(test):
            raise DataError(f"{self.params.rows} rows in all leave none to test on; bring more")
        dataset = Dataset(
            self.name,
            held.task,
            held.class_names,
            train,
            validation,
            test,
            feature_names=held.feature_names,
            facts={"rows": self.params.rows},
        )
        return check_classes(dataset)

    def _load_table(self, held: _Held, seed: int) -> Dataset:
        """A raw table, which is preprocessed once it is known who holds which row."""
        clients = held.clients
        counts = {client: len(rows.targets) for client, rows in clients.items()}
        columns = join_columns({client: rows.columns or {} for client, rows in clients.items()}, counts)
        named = None not in clients
        table = Table(
            {name: cells for name, cells in columns.items() if cells.dtype != object},
            {name: cells for name, cells in columns.items() if cells.dtype == object},
            np.concatenate([rows.targets.numpy() for rows in clients.values()]),
            [row for count in counts.values() for row in range(count)],
            [str(client) for client, count in counts.items() for _ in range(count)] if named else None,
            {"rows": self.params.rows},
            split_apart=named,
        )
        return tabular_dataset(self.name, held.task, held.class_names, table, seed)


def join_columns(
    tables: Mapping[str | None, Mapping[str, np.ndarray]], lengths: Mapping[str | None, int]
) -> dict[str, np.ndarray]:
    """The tables of several clients as one; a column that one lacks is missing there.

    Raises:
        DataError: A column is numbers at one client and words at another.
    """
    joined: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        has_words = {client: table[name].dtype == object for client, table in tables.items() if name in table}
        if len(set(has_words.values())) > 1:
            clients = {words: client for client, words in has_words.items()}
            raise DataError(
                f"column '{name}' holds words at '{clients[True]}' and numbers at '{clients[False]}'"
            )
        words = next(iter(has_words.values()))
        empty, kind = ("", object) if words else (np.nan, float)
        joined[name] = np.concatenate(
            [
                table[name] if name in table else np.full(lengths[client], empty, dtype=kind)
                for client, table in tables.items()
            ]
        )
    return joined


def _joined(part: list[tuple[str | None, Rows]], named: bool) -> Split:
    groups = tuple(str(client) for client, rows in part for _ in range(len(rows.targets)))
    return Split(
        torch.cat([rows.inputs for _, rows in part]),
        torch.cat([rows.targets for _, rows in part]),
        groups if named else None,
    )


@contextmanager
def hold_rows(
    clients: dict[str | None, Rows],
    task: Task,
    class_names: tuple[str, ...],
    feature_names: tuple[str, ...] = (),
) -> Iterator[dict[str, str | int]]:
    """Make rows known as long as the block runs; gives the `dataset` section that stands for them.

    Args:
        clients: Whose rows they are; the only key None where that is for a partition to say.
        task: What the targets are.
        class_names: One per class or finding.
        feature_names: One per column of a table.
    """
    digest = hashlib.sha256(repr((task.value, class_names)).encode())
    for client, rows in clients.items():
        digest.update(repr((client, tuple(rows.inputs.shape))).encode())
        digest.update(rows.inputs.contiguous().numpy().tobytes())
        digest.update(rows.targets.contiguous().numpy().tobytes())
        for name, cells in (rows.columns or {}).items():
            digest.update(repr((name, cells.tolist())).encode())
    key = digest.hexdigest()[:16]
    # several threads may hold the same rows
    _held.setdefault(key, []).append(_Held(clients, task, class_names, feature_names))
    count = sum(len(rows.targets) for rows in clients.values())
    try:
        yield {"name": IN_MEMORY, "sha256": key, "rows": count, "task": task.value}
    finally:
        _held[key].pop()
