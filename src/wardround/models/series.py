"""Networks for series: time × features in."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn

from wardround.errors import ConfigError
from wardround.models.base import ModelSpec, Parameters, register


def series_shape(model: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int]:
    """(time, features), if samples are series that are long enough for the model."""
    if len(input_shape) != 2:
        raise ConfigError(
            f"model '{model}' wants series (time × features), the dataset's samples have shape "
            f"{' × '.join(map(str, input_shape))}; of mimic3 use `view: series`"
        )
    steps, features = input_shape
    if steps < smallest:
        raise ConfigError(
            f"model '{model}' wants at least {smallest} points in time, the dataset has {steps}"
        )
    return steps, features


@register("cnn1d")
class Cnn1d(ModelSpec):
    """Convolutions along time, each pooled by 2, then the mean over what is left of time.

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("cnn1d").build((48, 10), outputs=1).parameters())
    12001
    """

    summary = "convolutions along time, for series"
    example_shapes = ((48, 5), (4, 1))

    class Params(Parameters):
        channels: tuple[int, ...] = Field((32, 64), min_length=1)
        kernel: int = Field(5, ge=1)
        dropout: float = Field(0.0, ge=0, lt=1)

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        p = self.params
        _, before = series_shape(self.name, input_shape, smallest=2 ** len(p.channels))
        layers: list[nn.Module] = [TimeLast()]
        for after in p.channels:
            layers += [nn.Conv1d(before, after, p.kernel, padding="same"), nn.ReLU(), nn.MaxPool1d(2)]
            before = after
        layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten()]
        if p.dropout > 0:
            layers.append(nn.Dropout(p.dropout))
        return nn.Sequential(*layers, nn.Linear(before, outputs))


class TimeLast(nn.Module):
    """n × time × features → n × features × time."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.transpose(1, 2)


@register("gru")
class Gru(ModelSpec):
    """A gated recurrent unit over time; its last state goes through a linear layer.

    Cho et al., "Learning phrase representations using RNN encoder–decoder", EMNLP 2014.

    >>> from wardround import models
    >>> sum(p.numel() for p in models.create("gru").build((48, 10), outputs=1).parameters())
    14657
    """

    summary = "gated recurrent unit, for series"
    example_shapes = ((48, 5), (1, 1))

    class Params(Parameters):
        hidden: int = Field(64, ge=1)
        layers: int = Field(1, ge=1)
        dropout: float = Field(0.0, ge=0, lt=1)
        """Before the linear layer and between recurrent layers."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        p = self.params
        _, features = series_shape(self.name, input_shape)
        between = p.dropout if p.layers > 1 else 0.0
        return nn.Sequential(
            LastState(nn.GRU(features, p.hidden, p.layers, batch_first=True, dropout=between)),
            nn.Dropout(p.dropout),
            nn.Linear(p.hidden, outputs),
        )


class LastState(nn.Module):
    """The state of the last layer after the last point in time."""

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        self.gru = gru

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.gru(inputs)[1][-1]
        return state
