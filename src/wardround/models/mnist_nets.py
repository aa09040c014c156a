"""Networks for small images that published benchmarks use, layer by layer."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from wardround.models.base import ModelSpec, Parameters, register
from wardround.models.images import Share, image_shape


def flat_size(body: nn.Sequential, shape: tuple[int, int, int]) -> int:
    """How many values `body` makes of one image."""
    with torch.no_grad():
        return int(body.eval()(torch.zeros(1, *shape)).shape[1])


@register("byzfl-cnn")
class ByzflCnn(ModelSpec):
    """Two 5×5 convolutions (20 and 50 channels), each pooled by 2, and a dense layer of 500.

    `cnn_mnist` of ByzFL's benchmark (González et al., "ByzFL: Research Framework for Robust Federated Learning", 2025).

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("byzfl-cnn").build((1, 28, 28), outputs=10).parameters())
    431080
    """

    summary = "2 convolutions, 2 dense layers: ByzFL's cnn_mnist"
    example_shapes = ((1, 28, 28), (3, 16, 16))

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        shape = image_shape(self.name, input_shape, smallest=16)
        body = nn.Sequential(
            nn.Conv2d(shape[0], 20, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
        )  # fmt: skip
        return nn.Sequential(
            *body, nn.Linear(flat_size(body, shape), 500), nn.ReLU(), nn.Linear(500, outputs)
        )


@register("bucketing-cnn")
class BucketingCnn(ModelSpec):
    """Two 3×3 convolutions (32 and 64 channels), pooled once, and a dense layer of 128, with dropout before each.

    The network of Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR
    2022, for MNIST: conv, conv, dropout, dense, dropout, dense, as in PyTorch's own MNIST example.

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("bucketing-cnn").build((1, 28, 28), outputs=10).parameters())
    1199882
    """

    summary = "2 convolutions, 2 dense layers with dropout: PyTorch's MNIST example"
    example_shapes = ((1, 28, 28), (3, 8, 8))

    class Params(Parameters):
        dropout: tuple[Share, Share] = (0.25, 0.5)
        """Before the first and before the second dense layer."""
        width: int = Field(32, ge=1)
        """Channels of the first convolution; the second has twice as many. Less is a quicker network."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        shape, width = image_shape(self.name, input_shape, smallest=8), self.params.width
        first, second = self.params.dropout
        body = nn.Sequential(
            nn.Conv2d(shape[0], width, 3), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(first), nn.Flatten(),
        )  # fmt: skip
        size = flat_size(body, shape)
        return nn.Sequential(
            *body.train(), nn.Linear(size, 128), nn.ReLU(), nn.Dropout(second), nn.Linear(128, outputs)
        )
