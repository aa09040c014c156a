"""Networks for images: what they ask of a shape, and the two that papers describe layer by layer."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from wardround.errors import ConfigError
from wardround.models.base import ModelSpec, Parameters, register

Share = Annotated[float, Field(ge=0, lt=1)]


def image_shape(model: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(channels, height, width), if samples are images that are large enough for the model."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"model '{model}' wants images (channels × height × width), the dataset's samples have shape "
            f"{' × '.join(map(str, input_shape))}"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"model '{model}' wants images of at least {smallest} × {smallest} pixels, the dataset's have "
            f"{height} × {width}"
        )
    return channels, height, width


class HalvingMaxPool(nn.MaxPool2d):
    """Max pooling by 2 that takes a tenth of torch's time on the CPU where no gradient is wanted.

    The largest of four strided views, which is the same to the bit. With gradients it is torch's own pooling: that
    gives the whole gradient to the first of equal values.

    >>> HalvingMaxPool()(torch.tensor([[[[1.0, 5.0, 0.0], [2.0, 3.0, 9.0]]]])).tolist()
    [[[[5.0]]]]
    """

    pools_as = nn.MaxPool2d
    """What it can be replaced by: it adds nothing to it."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or input.device.type != "cpu" or torch.compiler.is_compiling():
            # An exported network has one pooling, not three steps.
            pooled: Tensor = super().forward(input)
            return pooled
        height, width = (length // 2 * 2 for length in input.shape[-2:])
        rows = torch.maximum(input[..., 0:height:2, :width], input[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


@register("medical-cnn")
class MedicalCnn(ModelSpec):
    """Four unpadded 3×3 convolutions with BatchNorm, pooled to 4×4, and two dense layers with dropout.

    conv(C,32) BN ReLU · conv(32,64) BN ReLU maxpool · conv(64,128) BN ReLU · conv(128,256) BN ReLU maxpool ·
    average pool 4×4 · dropout ½ · dense(4096,128) ReLU · dropout 0.3 · dense(128, outputs).

    913,732 parameters for one channel and four classes (its description says about 1.2 million; the layers
    it lists do not add up to that).

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("medical-cnn").build((1, 224, 224), outputs=4).parameters())
    913732
    """

    summary = "4 convolutions with BatchNorm, 2 dense layers with dropout"
    example_shapes = ((1, 28, 28), (3, 16, 17))

    class Params(Parameters):
        dropout: tuple[Share, Share] = (0.5, 0.3)
        """Before the first and before the second dense layer."""
        width: int = Field(32, ge=1)
        """Channels of the first convolution; the next have 2, 4 and 8 times as many. Less is a quicker network."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, _, _ = image_shape(self.name, input_shape, smallest=16)
        width = self.params.width

        def block(before: int, after: int) -> list[nn.Module]:
            return [nn.Conv2d(before, after, 3), nn.BatchNorm2d(after), nn.ReLU()]

        first, second = self.params.dropout
        return nn.Sequential(
            *block(channels, width),
            *block(width, 2 * width),
            HalvingMaxPool(),
            *block(2 * width, 4 * width),
            *block(4 * width, 8 * width),
            HalvingMaxPool(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Dropout(first),
            nn.Linear(8 * width * 16, 128),
            nn.ReLU(),
            nn.Dropout(second),
            nn.Linear(128, outputs),
        )


@register("dos-cnn")
class DosCnn(ModelSpec):
    """Two 5×5 convolutions (6 and 16 channels), each pooled by 2, and dense layers of 120 and 84.

    The network of Alkhunaizi et al., "Suppressing poisoning attacks on federated learning for medical
    imaging", MICCAI 2022, for HAM10000.

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("dos-cnn").build((3, 128, 128), outputs=7).parameters())
    1628471
    >>> sum(p.numel() for p in models.create("dos-cnn", dense=[120]).build((3, 128, 128), outputs=7).parameters())
    1618559
    """

    summary = "2 convolutions, 3 dense layers"
    example_shapes = ((3, 32, 32), (1, 16, 16))

    class Params(Parameters):
        new: ClassVar[frozenset[str]] = frozenset({"dense"})

        dense: tuple[Annotated[int, Field(ge=1)], ...] = (120, 84)
        """Widths of the dense layers before the last one. The paper's text has two dense layers in all, which is one
        width here; the authors' code has three."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        channels, height, width = image_shape(self.name, input_shape, smallest=16)
        body = nn.Sequential(
            nn.Conv2d(channels, 6, 5), nn.ReLU(), HalvingMaxPool(),
            nn.Conv2d(6, 16, 5), nn.ReLU(), HalvingMaxPool(),
            nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            width_of_body = body(torch.zeros(1, channels, height, width)).shape[1]
        widths = (width_of_body, *self.params.dense)
        hidden = [
            layer
            for before, after in itertools.pairwise(widths)
            for layer in (nn.Linear(before, after), nn.ReLU())
        ]
        return nn.Sequential(*body, *hidden, nn.Linear(widths[-1], outputs))
