"""What the datasets of chest X-rays share: one channel, slight turns, and two ways to normalise."""

from __future__ import annotations

from typing import ClassVar, Literal

from wardround.datasets.augmentation import SLIGHT_TURN
from wardround.datasets.images import GREY_IMAGENET, ImageFileSource, ImageParams, Shades

__all__ = ["ChestXrayParams", "ChestXraySource"]

TORCHXRAYVISION: Shades = ((0.5,), (1 / 2048,))
"""Shades 0 to 1 become −1024 to 1024: as deviations from one half, of which 2,048 would make the whole range."""


class ChestXrayParams(ImageParams):
    """What every dataset of chest X-rays has."""

    new: ClassVar[frozenset[str]] = frozenset({"normalise"})

    normalise: Literal["imagenet", "torchxrayvision"] = "imagenet"
    """Shades with ImageNet's mean and deviation, or from −1024 to 1024 as TorchXRayVision has them. The latter wants
    a network whose first layer is followed by a normalisation, such as resnet18."""


class ChestXraySource(ImageFileSource):
    """A dataset of chest X-ray files."""

    channels = 1
    shades = GREY_IMAGENET
    augmentation = SLIGHT_TURN
    load_only = frozenset({"augment", "normalise"})

    class Params(ChestXrayParams):
        """What every dataset of chest X-rays has."""

    params: ChestXrayParams

    def normalisation(self) -> Shades | None:
        return TORCHXRAYVISION if self.params.normalise == "torchxrayvision" else super().normalisation()
