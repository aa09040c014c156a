"""What image datasets share that come as arrays with a test set of their own."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wardround.datasets.base import split_units
from wardround.datasets.decoding import IMAGES, MOMENTS
from wardround.datasets.images import ImageSource, moments_of
from wardround.datasets.prepared_cache import Workspace
from wardround.errors import DataError

__all__ = ["ArraySource"]

OFFICIAL_TEST = "test"


class ArraySource(ImageSource):
    """Images that come as arrays with a test set of their own: kept as it is, the rest split 7 : 1."""

    shades = None

    @abstractmethod
    def arrays(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """`train` and `test`: images (n × channels × height × width, uint8) and class indices."""

    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        assert folder is not None
        arrays = self.arrays(folder)
        images = np.concatenate([arrays["train"][0], arrays["test"][0]])
        targets = np.concatenate([arrays["train"][1], arrays["test"][1]]).astype(np.int64)
        if targets.max() >= len(self.class_names):
            raise DataError(
                f"{folder}: label {targets.max()} where {len(self.class_names)} classes are expected"
            )
        facts = {"images": len(images), "labels": self.label_counts(targets), "test": len(arrays["test"][0])}
        moments = moments_of(torch.from_numpy(images))
        units = [*map(str, range(len(arrays["train"][0]))), *[OFFICIAL_TEST] * len(arrays["test"][0])]
        with work.writing(IMAGES) as path, path.open("wb") as file:
            np.save(file, images)
        with work.writing(MOMENTS) as path, path.open("wb") as file:
            np.save(file, moments)
        with work.writing("samples.npz") as path, path.open("wb") as file:
            np.savez(file, rows=np.arange(len(images)), targets=targets, units=np.array(units))
        work.progress("images", len(images), len(images))
        return facts

    def parts(
        self, units: np.ndarray, labels: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        test = np.flatnonzero(units == OFFICIAL_TEST)
        own = np.flatnonzero(units != OFFICIAL_TEST)
        train, validation, _ = split_units(units[own], seed, shares=(7 / 8, 1 / 8, 0.0))
        return own[train], own[validation], test
