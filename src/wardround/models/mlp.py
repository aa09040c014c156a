"""Multi-layer perceptron and logistic regression, for tables."""

from __future__ import annotations

import math

from pydantic import Field
from torch import nn

from wardround.models.base import ModelSpec, Parameters, register


def dense(
    input_shape: tuple[int, ...], widths: tuple[int, ...], outputs: int, dropout: float
) -> nn.Sequential:
    """Linear → ReLU (→ Dropout) for each width, then a linear layer of logits."""
    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    size = math.prod(input_shape)
    for width in widths:
        layers += [nn.Linear(size, width), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))


@register("mlp")
class Mlp(ModelSpec):
    """Dense layers with ReLU between them."""

    summary = "dense layers with ReLU, for tables"
    example_shapes = ((7,), (1, 8, 8))

    class Params(Parameters):
        hidden: tuple[int, ...] = Field((64, 32), min_length=1)
        dropout: float = Field(0.0, ge=0, lt=1)

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return dense(input_shape, self.params.hidden, outputs, self.params.dropout)


@register("logistic")
class Logistic(ModelSpec):
    """One linear layer: logistic (binary) or softmax (multi-class) regression."""

    summary = "one linear layer"
    example_shapes = ((7,), (3, 8, 8))

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return dense(input_shape, (), outputs, 0.0)
