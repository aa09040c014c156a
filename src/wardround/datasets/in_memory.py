"""Rows that a Python program has handed over, in a configuration that names them by their hash.

The rows themselves are not written anywhere: they may be patients'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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
from wardround.errors import DataError

__all__ = ["IN_MEMORY", "InMemory", "Rows", "hold_rows"]

IN_MEMORY = "in-memory"


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of one client, or of nobody yet."""

    inputs: Tensor
    """n × …, float32."""
    targets: Tensor
    """Class indices (int64, n), or n × L zeros and ones (float32)."""


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
    key = digest.hexdigest()[:16]
    # several threads may hold the same rows
    _held.setdefault(key, []).append(_Held(clients, task, class_names, feature_names))
    count = sum(len(rows.targets) for rows in clients.values())
    try:
        yield {"name": IN_MEMORY, "sha256": key, "rows": count, "task": task.value}
    finally:
        _held[key].pop()
