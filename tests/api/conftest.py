"""Rows of made-up hospitals, and a network that is no chain of layers."""

import numpy as np
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, features=5, outputs=1):
        super().__init__()
        self.first, self.last = nn.Linear(features, 8), nn.Linear(8, outputs)

    def forward(self, rows):
        return self.last(torch.tanh(self.first(rows)))


def rows_of(count, seed, features=5, classes=2):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, features))
    return inputs, np.digitize(
        inputs[:, 0] + 0.3 * rng.normal(size=count), np.linspace(-0.5, 0.5, classes)[1:]
    )


@pytest.fixture
def hospitals():
    return {f"hospital {i}": rows_of(40 + 10 * i, i) for i in range(5)}


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net()
