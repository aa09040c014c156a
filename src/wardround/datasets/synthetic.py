"""A seeded generator of binary tasks, with benign drift for those who study it."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field, model_validator

from wardround.datasets.base import (
    Dataset,
    DatasetSource,
    DriftSpace,
    Parameters,
    Task,
    register,
    split_samples,
)
from wardround.datasets.drift import DriftParams, FeatureShift
from wardround.randomness import numpy_generator


class Drift(Parameters):
    """How the case mix of some clients moves: the former place of the section `drift:`, for one release."""

    clients: tuple[str, ...] = Field(min_length=1)
    """Their names, as the partition gives them: hospital-00, …"""
    size: float = Field(1.0, ge=0)
    """How far they end up, in standard deviations of the noise."""
    start: int = Field(1, ge=1)
    """The last round in which nothing has moved yet."""
    ramp: int = Field(50, ge=1)
    """Rounds from there until the full distance."""

    def general(self) -> DriftParams:
        """The same as the section `drift:` says it."""
        return DriftParams(clients=self.clients, feature_shift=self.size, start=self.start, ramp=self.ramp)


@register("synthetic")
class Synthetic(DatasetSource):
    r"""Two overlapping classes with some uninformative features.

    Labels are drawn first; a sample is :math:`x = (2y-1)\,m\,s/2 + \varepsilon` with a random direction s over
    the informative features, separation m and standard normal noise, passed through a mild nonlinearity so
    that a linear model is not the end of it.

    Benign drift (the section `drift:` of a run) moves samples at right angles to s, so that what tells the classes
    apart stays as it is.

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
        drift: Drift | None = None
        """Former place of the section `drift:` of a run."""

        @model_validator(mode="after")
        def _room_to_drift(self) -> Synthetic.Params:
            if self.drift is not None and self.features < 2:
                raise ValueError(f"drift needs at least 2 features, got features={self.features}")
            return self

    params: Params

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
        splits = split_samples(features, targets, np.arange(p.samples), seed)
        names = tuple(f"x{i}" for i in range(p.features))
        space = DriftSpace(direction[None], np.ones(p.features))
        drift = None if p.drift is None else FeatureShift(p.drift.general(), space, seed)
        return Dataset(
            self.name,
            self.task,
            ("negative", "positive"),
            *splits,
            drift=drift,
            feature_names=names,
            drift_space=space,
        )
