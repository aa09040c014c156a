"""A seeded generator of binary tasks, with benign drift for those who study it."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from wardround.datasets.base import Dataset, DatasetSource, Parameters, Split, Task, register, split_units
from wardround.randomness import numpy_generator


@register("synthetic")
class Synthetic(DatasetSource):
    r"""Two overlapping classes with some uninformative features.

    Labels are drawn first; a sample is :math:`x = (2y-1)\,m\,s/2 + \varepsilon` with a random direction s over
    the informative features, separation m and standard normal noise, passed through a mild nonlinearity so
    that a linear model is not the end of it.

    >>> from wardround import datasets
    >>> datasets.create("synthetic", samples=100, features=5).load(seed=1).input_shape
    (5,)
    """

    task = Task.BINARY
    summary = "seeded two-class generator, for tests and quick looks"
    licence = "none needed"
    origin = "made on the spot"

    class Params(Parameters):
        samples: int = Field(2000, ge=20)
        features: int = Field(20, ge=1)
        informative: int = Field(10, ge=1)
        """How many features carry the label (at most `features`)."""
        positives: float = Field(0.3, gt=0, lt=1)
        separation: float = Field(1.5, ge=0)

    def load(self, seed: int) -> Dataset:
        p = self.params
        rng = numpy_generator(seed, "synthetic")
        labels = (rng.random(p.samples) < p.positives).astype(np.int64)
        informative = min(p.informative, p.features)
        direction = np.zeros(p.features)
        direction[:informative] = rng.standard_normal(informative)
        direction /= np.linalg.norm(direction)
        inputs = rng.standard_normal((p.samples, p.features))
        inputs += np.outer((2 * labels - 1) * p.separation / 2, direction)
        inputs += 0.3 * np.sin(2 * inputs)
        features, targets = torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)
        parts = split_units(np.arange(p.samples), seed)
        splits = [Split(features[rows], targets[rows]) for rows in parts]
        names = tuple(f"x{i}" for i in range(p.features))
        return Dataset(self.name, self.task, ("negative", "positive"), *splits, feature_names=names)
