"""Tables of numbers and words → float32 features, fitted on training rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from wardround.datasets.base import Dataset, Task, check_classes, split_samples, split_units

__all__ = ["Table", "tabular_dataset"]


@dataclass(frozen=True)
class Table:
    """Columns of numbers (NaN where missing) and of words ("" where missing), and a target a row."""

    numeric: dict[str, np.ndarray]
    categorical: dict[str, np.ndarray]
    targets: np.ndarray
    units: Sequence[object] | np.ndarray
    """The patient of each row: rows of one patient never fall into two splits."""
    groups: Sequence[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def tabular_dataset(name: str, task: Task, class_names: tuple[str, ...], table: Table, seed: int) -> Dataset:
    """Split, then impute (median), standardise and one-hot encode as learnt from the training rows.

    A category that never occurs in training is all zeros; so is a missing one where training has none.
    """
    fitting = split_units(table.units, seed)[0]
    blocks, names = [], list(table.numeric)
    if table.numeric:
        blocks.append(_standardised(np.column_stack([*table.numeric.values()]).astype(float), fitting))
    for column, words in table.categorical.items():
        levels = np.unique(words[fitting])
        blocks.append(words[:, None] == levels[None, :])
        names += [f"{column}={level or 'missing'}" for level in levels]
    features = torch.from_numpy(np.column_stack(blocks).astype(np.float32))
    targets = torch.from_numpy(np.asarray(table.targets))
    splits = split_samples(features, targets, table.units, seed, table.groups)
    dataset = Dataset(name, task, class_names, *splits, feature_names=tuple(names), facts=table.facts)
    return check_classes(dataset)


def _standardised(values: np.ndarray, fitting: np.ndarray) -> np.ndarray:
    """(x − mean) / deviation with gaps filled by the median, all three of the rows to fit on.

    A column that training rows never fill is all zeros, one that never varies is only centred.
    """
    known = ~np.isnan(values[fitting]).all(0)
    medians = np.zeros(values.shape[1])
    for column in np.flatnonzero(known):
        cells = values[fitting, column]
        medians[column] = np.median(cells[~np.isnan(cells)])
    filled = np.where(np.isnan(values) | ~known, medians, values)
    spread = filled[fitting].std(0)
    # Rounding must not pass for variation: a constant column deviates by about its last bit.
    noise = 10 * np.finfo(float).eps * np.maximum(1.0, np.abs(medians))
    standardised: np.ndarray = (filled - filled[fitting].mean(0)) / np.where(spread > noise, spread, 1.0)
    return standardised
