"""Which class a sample counts as, whatever its target is: for partitions, counts and drift."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from wardround.survival import is_survival

__all__ = ["class_counts", "classes_of"]


def classes_of(targets: np.ndarray) -> np.ndarray:
    """One class a sample (n int64): of a multi-label sample the first positive finding (none: a class of its own), of
    a survival time whether the event happened.

    >>> classes_of(np.array([250.0, -30.0])), classes_of(np.array([[0, 1], [0, 0]]))
    (array([1, 0]), array([1, 2]))
    """
    if is_survival(targets):
        events: np.ndarray = (~np.signbit(targets)).astype(np.int64)
        return events
    if targets.ndim == 1:
        return targets.astype(np.int64)
    positive = targets > 0
    classes: np.ndarray = np.where(positive.any(1), positive.argmax(1), targets.shape[1])
    return classes


def class_counts(targets: Tensor, classes: int) -> list[int]:
    """Samples per class; positives per finding of a multi-label task; censored and events of a survival task."""
    if targets.ndim == 1:
        counts: list[int] = np.bincount(classes_of(targets.numpy()), minlength=classes).tolist()
        return counts
    findings: list[int] = targets.sum(0).int().tolist()
    return findings
