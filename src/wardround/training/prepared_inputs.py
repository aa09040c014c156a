"""Model input as rows of a table, prepared once and kept from round to round."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.training.base import ClientTask

__all__ = ["GroupInputs", "PreparedInputs"]

KEPT_BYTES = 1 << 30
"""Of all tables that are kept."""


@dataclass(frozen=True, eq=False)
class GroupInputs:
    """The flattened model input of a group of clients: their samples, client by client."""

    table: Tensor
    """n × (features + 1): a last column of ones carries the bias."""
    rows: Tensor | None
    """Sample → row of the table; None: sample i is row i."""
    shape: torch.Size
    """Of one sample, as the model and the augmentation see it."""

    @property
    def width(self) -> int:
        """Columns, with that of ones."""
        return self.table.shape[1]

    def take(self, samples: Tensor, into: Tensor) -> None:
        """Copy the samples with these numbers into `into` (len(samples) × width)."""
        torch.index_select(self.table, 0, samples if self.rows is None else self.rows[samples], out=into)

    def as_input(self, table: Tensor) -> Tensor:
        """Rows of a table (n × width) as a batch of model input (n × shape)."""
        batch: Tensor = table[:, :-1].unflatten(1, self.shape)
        return batch

    def put(self, batch: Tensor, table: Tensor) -> None:
        """Write a batch of model input (n × shape) into rows of a table (n × width)."""
        table[:, :-1] = batch.flatten(1)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A stored split, and the table made of it when its tensor had that version."""

    inputs: Tensor
    version: int
    table: Tensor
    shape: torch.Size


class PreparedInputs:
    """Makes `GroupInputs` of stored samples. Splits that fit are prepared as a whole, once; others group by group."""

    def __init__(self, prepare: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.prepare, self.dtype, self.device = prepare, dtype, device
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def of(self, tasks: Sequence[ClientTask]) -> GroupInputs:
        """The samples of these clients, end to end, with each client's transform of this round."""
        inputs = tasks[0].data.inputs
        plain = all(task.data.inputs is inputs and task.transform is None for task in tasks)
        kept = self._whole(inputs) if plain else None
        if kept is not None:
            rows = torch.cat([task.data.rows for task in tasks]).to(self.device)
            return GroupInputs(kept.table, rows, kept.shape)
        batches = [self._batch(task) for task in tasks]
        return GroupInputs(torch.cat([_table(batch) for batch in batches]), None, batches[0].shape[1:])

    def _batch(self, task: ClientTask) -> Tensor:
        """One client's samples as model input."""
        kept = self._whole(task.data.inputs)
        if kept is not None:
            batch = kept.table[task.data.rows.to(self.device), :-1].unflatten(1, kept.shape)
        else:
            batch = self._to_input(task.data.inputs[task.data.rows])
        return batch if task.transform is None else task.transform(batch)

    def _whole(self, inputs: Tensor) -> _Kept | None:
        """The split prepared as a whole, if it fits into memory; else None."""
        kept = self._kept.get(id(inputs))
        if kept is None or kept.inputs is not inputs or kept.version != inputs._version:
            one = self._to_input(inputs[:1])
            size = one.numel() * one.element_size() * len(inputs)
            if size > KEPT_BYTES:
                return None
            batch = self._to_input(inputs)
            kept = _Kept(inputs, inputs._version, _table(batch), batch.shape[1:])
            self._kept[id(inputs)] = kept
        self._kept.move_to_end(id(inputs))
        while sum(entry.table.nbytes for entry in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return kept

    def _to_input(self, stored: Tensor) -> Tensor:
        return self.prepare(stored.to(self.device)).to(self.dtype)


def _table(batch: Tensor) -> Tensor:
    """n × features and a last column of ones."""
    rows = batch.flatten(1)
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
