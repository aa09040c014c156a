"""Tables of numbers and words → float32 features, fitted on training rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wardround.datasets.base import Dataset, Split, Task, split_units

__all__ = ["Table", "tabular_dataset"]


@dataclass(frozen=True)
class Table:
    """Columns of numbers (NaN where missing) and of words ("" where missing), and a target a row."""

    numeric: dict[str, np.ndarray]
    categorical: dict[str, np.ndarray]
    targets: np.ndarray
    units: Sequence[object]
    """The patient of each row: rows of one patient never fall into two splits."""
    groups: Sequence[str] | None = None


def tabular_dataset(name: str, task: Task, class_names: tuple[str, ...], table: Table, seed: int) -> Dataset:
    """Split, then impute (median), standardise and one-hot encode as learnt from the training rows.

    A category that never occurs in training is all zeros; so is a missing one where training has none.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts = split_units(table.units, seed)
    numeric = np.column_stack([*table.numeric.values()]) if table.numeric else np.empty((len(table.targets), 0))
    words = np.column_stack([*table.categorical.values()]) if table.categorical else np.empty((len(numeric), 0))
    width = numeric.shape[1]
    encoder = ColumnTransformer(
        [
            (
                "numeric",
                make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()),
                list(range(width)),
            ),
            (
                "words",
                OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                list(range(width, width + words.shape[1])),
            ),
        ]
    )
    cells = np.column_stack([numeric.astype(object), words.astype(object)])
    encoder.fit(cells[parts[0]])
    features = torch.from_numpy(np.ascontiguousarray(encoder.transform(cells), dtype=np.float32))
    targets = torch.from_numpy(np.asarray(table.targets))
    groups = None if table.groups is None else np.asarray(table.groups, dtype=object)
    splits = [
        Split(features[rows], targets[rows], None if groups is None else tuple(groups[rows])) for rows in parts
    ]
    levels = encoder.named_transformers_["words"].categories_ if table.categorical else []
    names = list(table.numeric) + [
        f"{column}={level or 'missing'}"
        for column, found in zip(table.categorical, levels, strict=True)
        for level in found
    ]
    return Dataset(name, task, class_names, *splits, feature_names=tuple(names))
