"""What a network makes of random inputs: shown to rules that look into the clients' models."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from wardround.datasets.base import Dataset, Task
from wardround.randomness import torch_generator
from wardround.updates import Layout

__all__ = ["RandomProbe"]

SAMPLES = 512
"""Random inputs: enough for means over them to be steady, few enough to cost less than a local epoch."""


class RandomProbe:
    """Global weights in, output probabilities on the same random inputs out."""

    def __init__(self, model: nn.Module, dataset: Dataset, seed: int) -> None:
        """Draw the inputs: uniform in [0, 1], of the model's input shape, named by the seed."""
        self._network = copy.deepcopy(model).eval()
        self._layout = Layout.of(model)
        self._multiclass = dataset.task is Task.MULTICLASS
        generator = torch_generator(seed, "random-probe")
        self._inputs = torch.rand(SAMPLES, *dataset.input_shape, generator=generator)

    def __call__(self, weights: Tensor) -> Tensor:
        """D weights → S × C probabilities."""
        tensors = self._network.state_dict()
        with torch.no_grad():
            for name, value in self._layout.unflatten(weights).items():
                tensors[name].copy_(value)
            logits = self._network(self._inputs)
        probabilities: Tensor = logits.softmax(1) if self._multiclass else logits.sigmoid()
        return probabilities.reshape(SAMPLES, -1)
