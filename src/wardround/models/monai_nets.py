"""Two well-known image networks as MONAI builds them (torchvision is not needed)."""

from __future__ import annotations

from typing import Literal

from torch import nn

from wardround.errors import require
from wardround.models.base import ModelSpec, Parameters, register
from wardround.models.images import image_shape

LARGE = 64
"""Pixels from which on ResNet starts with a stride of 2, as it was published: a third of the work."""


@register("resnet18")
class ResNet18(ModelSpec):
    """He et al., "Deep residual learning for image recognition", CVPR 2016; with one or three channels."""

    summary = "ResNet-18 (MONAI)"
    example_shapes = ((1, 28, 28), (3, 64, 64))
    extra = "imaging"

    class Params(Parameters):
        first_stride: Literal[1, 2] | None = None
        """Of the first convolution; default: 2 for images from 64 pixels on, 1 for smaller ones."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, height, width = image_shape(self.name, input_shape, smallest=28)
        stride = self.params.first_stride or (2 if min(height, width) >= LARGE else 1)
        nets = require("monai.networks.nets", "imaging")
        network: nn.Module = nets.resnet18(
            spatial_dims=2, n_input_channels=channels, num_classes=outputs, conv1_t_stride=stride
        )
        return network


@register("efficientnet-b0")
class EfficientNetB0(ModelSpec):
    """Tan and Le, "EfficientNet: rethinking model scaling", ICML 2019; from 32 pixels on."""

    summary = "EfficientNet-B0 (MONAI)"
    example_shapes = ((3, 32, 32), (1, 64, 33))
    extra = "imaging"

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _, _ = image_shape(self.name, input_shape, smallest=32)
        nets = require("monai.networks.nets", "imaging")
        network: nn.Module = nets.EfficientNetBN(
            "efficientnet-b0", spatial_dims=2, in_channels=channels, num_classes=outputs, pretrained=False
        )
        return network
