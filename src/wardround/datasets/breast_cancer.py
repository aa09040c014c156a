"""Wisconsin breast cancer, which scikit-learn carries: for tests and tutorials."""

from __future__ import annotations

import numpy as np

from wardround.datasets.base import Dataset, DatasetSource, Task, register
from wardround.datasets.table import Table
from wardround.datasets.tabular import built_in_schema, tabular_dataset


@register("breast-cancer")
class BreastCancer(DatasetSource):
    """Malignant or benign from 30 measurements of cell nuclei (Wisconsin, 569 patients).

    >>> from wardround import datasets
    >>> data = datasets.create("breast-cancer").load(seed=0)
    >>> data.input_shape, data.class_names, len(data.test)
    ((30,), ('benign', 'malignant'), 114)
    """

    task = Task.BINARY
    summary = "Wisconsin breast cancer: malignant or benign, 569 samples (in scikit-learn)"
    licence = "CC BY 4.0"
    origin = "scikit-learn's own copy of UCI Machine Learning Repository, data set 17"

    def load(self, seed: int) -> Dataset:
        from sklearn.datasets import load_breast_cancer

        raw = load_breast_cancer()
        table = Table(
            numeric=dict(zip(map(str, raw.feature_names), raw.data.T, strict=True)),
            categorical={},
            targets=(raw.target == 0).astype(np.int64),  # scikit-learn has 0 for malignant
            units=np.arange(len(raw.target)),
        )
        names = ("benign", "malignant")
        schema = built_in_schema(list(table.numeric), {}, "diagnosis", names)
        return tabular_dataset(self.name, self.task, names, table, seed, schema)
