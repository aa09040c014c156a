"""Small handwritten digits, which scikit-learn carries: for tests and tutorials."""

from __future__ import annotations

import numpy as np
import torch

from wardround.datasets.base import Dataset, DatasetSource, Task, register, split_samples


@register("digits")
class Digits(DatasetSource):
    """Handwritten digits of 8 × 8 pixels with 17 shades.

    >>> from wardround import datasets
    >>> data = datasets.create("digits").load(seed=0)
    >>> data.input_shape, len(data.train) + len(data.validation) + len(data.test)
    ((1, 8, 8), 1797)
    """

    task = Task.MULTICLASS
    summary = "8×8 handwritten digits, 1,797 samples (in scikit-learn)"
    licence = "CC BY 4.0"
    origin = "scikit-learn's own copy of UCI Machine Learning Repository, data set 80"

    def load(self, seed: int) -> Dataset:
        from sklearn.datasets import load_digits

        raw = load_digits()
        images = torch.from_numpy(raw.images.astype(np.uint8))[:, None]
        targets = torch.from_numpy(raw.target.astype(np.int64))
        splits = split_samples(images, targets, np.arange(len(targets)), seed)
        return Dataset(
            self.name, self.task, tuple("0123456789"), *splits, to_input=lambda stored: stored.float() / 16
        )
