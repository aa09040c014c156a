"""Random changes of training images: turns, flips and noise, a whole batch in one resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ANY_WAY_UP", "SLIGHT_TURN", "Augmentation", "turn"]

SLIGHT_TURN = {"degrees": 5.0}  # of chests: no flips, the heart is on the left
ANY_WAY_UP = {"degrees": 15.0, "flips": (0, 1)}  # a skin lesion has no up, down, left or right
PIECE = 64
"""Images that are resampled at a time: their grids stay in the cache."""


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
        """Changed copies of a batch (n × channels × height × width)."""
        mirrored = torch.rand(len(images), 2, generator=generator) < 0.5
        mirrored &= torch.tensor([axis in self.flips for axis in (0, 1)])
        if self.degrees:
            shares = torch.rand(len(images), generator=generator).mul_(2).sub_(1)
            changed = turn(images, shares * math.radians(self.degrees), mirrored)
        else:
            changed = _mirror(images, mirrored)
        if self.noise:
            scale = self.noise * len(self.deviation) / sum(self.deviation)
            drawn = torch.randn(images.shape, generator=generator, dtype=images.dtype)
            changed.add_(drawn.to(images.device), alpha=scale)
        return changed


def turn(images: Tensor, angles: Tensor, mirrored: Tensor) -> Tensor:
    """Images turned about their centres and mirrored, resampled once between pixels.

    What was outside a picture takes the colour of its border.

    Args:
        images: n × channels × height × width.
        angles: n radians, counter-clockwise.
        mirrored: n × 2 bool: upside down, left and right (before the turn).

    Returns:
        A new batch of the shape of `images`.
    """
    height, width = images.shape[-2:]
    cos, sin = angles.cos(), angles.sin()
    down, across = (1 - 2 * mirrored.to(angles.dtype)).unbind(1)
    # Where output pixel (x, y) comes from; x and y run from −1 to 1 along sides that may differ in length.
    coefficients = torch.stack(
        [cos * across, -sin * across * height / width, sin * down * width / height, cos * down], 1
    ).to(images.device, images.dtype)
    changed = torch.empty_like(images)
    places = _places(height, width, images.device, images.dtype)
    for first in range(0, len(images), PIECE):
        piece = slice(first, first + PIECE)
        grid = coefficients[piece].matmul(places).view(-1, height, width, 2)
        changed[piece] = functional.grid_sample(
            images[piece], grid, mode="bilinear", padding_mode="border", align_corners=False
        )
    return changed


def _mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """A copy of the batch, some of its images mirrored (n × 2 bool: upside down, left and right)."""
    changed = images.clone()
    for axis, chosen in zip((-2, -1), mirrored.to(images.device).unbind(1), strict=True):
        if bool(chosen.any()):
            changed[chosen] = changed[chosen].flip(axis)
    return changed


@lru_cache(maxsize=4)
def _places(height: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """4 × (height · width · 2): what the coefficients of a turn are multiplied by to give (x, y) of every pixel."""
    y = torch.arange(height).mul(2).add(1).div(height).sub(1).view(-1, 1).expand(height, width)
    x = torch.arange(width).mul(2).add(1).div(width).sub(1).view(1, -1).expand(height, width)
    nothing = torch.zeros(height, width)
    rows = [(x, nothing), (y, nothing), (nothing, x), (nothing, y)]
    return torch.stack([torch.stack(row, -1).flatten() for row in rows]).to(device, dtype)
