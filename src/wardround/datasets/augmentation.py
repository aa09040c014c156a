"""Random changes of training images, by MONAI's transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wardround.errors import require

__all__ = ["ANY_WAY_UP", "SLIGHT_TURN", "Augmentation"]

SLIGHT_TURN = {"degrees": 5.0}  # of chests: no flips, the heart is on the left
ANY_WAY_UP = {"degrees": 15.0, "flips": (0, 1)}  # a skin lesion has no up, down, left or right


@dataclass(frozen=True)
class Augmentation:
    """Turns, flips and noise, drawn anew for every image from the generator that is passed.

    Images come as model input, that is, normalised; `noise` counts in shades between 0 and 1, so it is
    scaled by the `deviation` that the normalisation divided by (their mean, where channels differ).
    """

    degrees: float = 0.0
    """Rotation by an angle between −degrees and +degrees."""
    flips: tuple[int, ...] = ()
    """Axes (0: upside down, 1: left and right) along which an image is mirrored with probability ½."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise."""
    deviation: Sequence[float] = (1.0,)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        seeds = torch.randint(2**31, (len(images),), generator=generator).tolist()
        changed = torch.empty_like(images)
        for row, seed in enumerate(seeds):
            self._transform.set_random_state(seed=seed)
            changed[row] = self._transform(images[row]).as_tensor()
        return changed

    @cached_property
    def _transform(self) -> Any:
        monai = require("monai.transforms", "imaging")
        steps: list[Any] = [monai.ToTensor(track_meta=True)]
        if self.degrees:
            # Turned by up to that angle; what was outside the picture takes the colour of its border.
            steps.append(
                monai.RandRotate(
                    range_x=math.radians(self.degrees), prob=1.0, keep_size=True, padding_mode="border"
                )
            )
        steps += [monai.RandFlip(prob=0.5, spatial_axis=axis) for axis in self.flips]
        if self.noise:
            # `sample_std` would draw the deviation itself anew between 0 and the one given.
            scale = self.noise * len(self.deviation) / sum(self.deviation)
            steps.append(monai.RandGaussianNoise(prob=1.0, std=scale, sample_std=False))
        return monai.Compose(steps)
