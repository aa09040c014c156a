"""ReLU and max pooling by two as one compiled step, forward and backward, for training on the CPU.

In torch the two take longer than the convolutions of a small network, in bf16 most of all. Values and gradients here
are torch's to the bit: the largest of four values takes the whole gradient, of equal ones the first.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from wardround.compilation import can_compile, compiled_loop

__all__ = ["ReluPooling", "fuse_relu_and_pooling"]

WHOLE = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
"""Whole numbers of the same size: what is not negative has the same order as its bits."""
NOWHERE = 4
"""Instead of a place in the window: none of its values is positive."""


def fuse_relu_and_pooling(module: nn.Module) -> None:
    """Replace every ReLU that is followed by max pooling by two, where both stand in an `nn.Sequential`.

    Nothing else changes: neither layer has parameters. Without numba, nothing does.
    """
    if not can_compile():
        return
    for parent in module.modules():
        if type(parent) is not nn.Sequential:
            continue
        names = list(parent._modules)
        for name, following in itertools.pairwise(names):
            if type(parent._modules[name]) is nn.ReLU and _halves(parent._modules[following]):
                parent._modules[name], parent._modules[following] = nn.Identity(), ReluPooling()


def _halves(layer: nn.Module | None) -> bool:
    """Is it max pooling of windows of 2 × 2 that do not overlap, and nothing more?"""
    if not isinstance(layer, nn.MaxPool2d) or not (type(layer) is nn.MaxPool2d or hasattr(layer, "pools_as")):
        return False
    asked = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    pairs = [(size, size) if isinstance(size, int) else tuple(size) for size in asked]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)] and not (layer.ceil_mode or layer.return_indices)


class ReluPooling(nn.Module):
    """ReLU, then max pooling of 2 × 2 windows, of images on the CPU.

    >>> ReluPooling()(torch.tensor([[[[1.0, 5.0, 0.0], [2.0, -3.0, 9.0]]]])).tolist()
    [[[[5.0]]]]
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype not in WHOLE or images.device.type != "cpu":
            return functional.max_pool2d(functional.relu(images), 2)
        pooled: Tensor = _Pooled.apply(images)  # type: ignore[no-untyped-call]
        return pooled


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: Tensor) -> Tensor:
        n, channels, height, width = context.shape = images.shape
        out = images.new_empty(n, height // 2, width // 2, channels)
        places = torch.empty(out.shape, dtype=torch.uint8)
        values = _last(images.detach())
        lowest = torch.tensor(-torch.inf, dtype=images.dtype).view(WHOLE[images.dtype]).item()
        _loops()[0](values, out.view(WHOLE[images.dtype]).numpy(), places.numpy(), lowest)
        context.save_for_backward(places)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (places,) = context.saved_tensors
        n, channels, height, width = context.shape
        out = gradient.new_zeros(n, height, width, channels)
        _loops()[1](_last(gradient), places.numpy(), out.view(WHOLE[gradient.dtype]).numpy())
        return out.permute(0, 3, 1, 2)


def _last(images: Tensor) -> np.ndarray:
    """The bits of the values of images (n × height × width × channels), in memory in that order."""
    rows: np.ndarray = images.permute(0, 2, 3, 1).contiguous().view(WHOLE[images.dtype]).numpy()
    return rows


def _pool(values: Any, out: Any, places: Any, lowest: Any) -> None:
    """The largest value of each window, at least 0, and where in the window it is.

    Bits of negative numbers are negative whole numbers, and become 0; those above `lowest`, the bits of −∞, are no
    numbers, and stay none.
    """
    largest = np.iinfo(values.dtype).max  # a NaN
    for n in range(out.shape[0]):
        for i in range(out.shape[1]):
            upper, lower, pooled, place = values[n, 2 * i], values[n, 2 * i + 1], out[n, i], places[n, i]
            for j in range(pooled.shape[0]):
                for c in range(pooled.shape[1]):
                    four = upper[2 * j, c], upper[2 * j + 1, c], lower[2 * j, c], lower[2 * j + 1, c]
                    best, where = np.int64(0), np.uint8(NOWHERE)
                    for k in range(4):
                        value = np.int64(four[k])
                        value = np.int64(largest) if lowest < value < 0 else value
                        where = np.uint8(k) if value > best else where
                        best = max(best, value)
                    pooled[j, c] = best
                    place[j, c] = where


def _spread(gradient: Any, places: Any, out: Any) -> None:
    """The gradient of each window at the place of its largest value; `out` is zero elsewhere."""
    for n in range(gradient.shape[0]):
        for i in range(gradient.shape[1]):
            for j in range(gradient.shape[2]):
                for c in range(gradient.shape[3]):
                    place = places[n, i, j, c]
                    if place != NOWHERE:
                        out[n, 2 * i + (place >> 1), 2 * j + (place & 1), c] = gradient[n, i, j, c]


@functools.cache
def _loops() -> tuple[Any, Any]:
    """Both loops compiled, with the first batch: not every process that loads this module trains."""
    return compiled_loop(_pool), compiled_loop(_spread)
