"""Networks that cannot be trained as they are, found before training."""

import pytest
import torch
from torch import nn

from wardround.api.networks import check_network, outputs_of
from wardround.datasets.base import Task
from wardround.errors import ConfigError

ROWS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))


class Squeezed(nn.Linear):
    def forward(self, rows):
        return super().forward(rows).squeeze(1)


class Shares(nn.Linear):
    def forward(self, rows):
        return torch.softmax(super().forward(rows), 1)


class Risk(nn.Linear):
    def forward(self, rows):
        return torch.sigmoid(super().forward(rows))


@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_outputs_are_counted(outputs):
    assert outputs_of(nn.Linear(5, outputs), ROWS) == outputs
    assert outputs_of(lambda: nn.Linear(5, outputs), ROWS) == outputs


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (nn.Sequential(nn.Linear(5, 1), nn.Sigmoid()), "its last layer is Sigmoid; remove"),
        (nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)), "its last layer is Softmax"),
        (Shares(5, 3), "each row of its output sums to 1"),
        (Squeezed(5, 1), r"got \(40,\); drop the squeeze"),
        (nn.Linear(4, 1), r"cannot take a batch of the shape \(40, 5\)"),
        (nn.Linear(5, 1).double(), "must be float32, not float64"),
        (nn.Identity(), "no parameters that can be trained"),
        (lambda: 3, "expected a torch.nn.Module, got int"),
        (Squeezed, "without arguments that makes one"),
        (nn.LSTM(5, 2), "must be a tensor of logits, got tuple"),
    ],
)
def test_what_does_not_fit_is_one_line(network, says):
    with pytest.raises(ConfigError, match=says) as error:
        outputs_of(network, ROWS)
    assert "\n" not in str(error.value)


def test_a_sigmoid_without_a_layer_is_suspected():
    with pytest.warns(UserWarning, match="between 0 and 1"):
        assert outputs_of(Risk(5, 1), ROWS) == 1


@pytest.mark.parametrize(
    ("outputs", "task", "classes", "fits"),
    [
        (1, Task.BINARY, 2, True),
        (2, Task.BINARY, 2, False),
        (2, Task.MULTICLASS, 2, True),
        (3, Task.MULTICLASS, 4, False),
        (4, Task.MULTILABEL, 4, True),
        (1, Task.MULTILABEL, 2, False),
    ],
)
def test_outputs_and_labels(outputs, task, classes, fits):
    names = tuple(f"class {i}" for i in range(classes))
    if fits:
        check_network(outputs, task, names)
    else:
        with pytest.raises(ConfigError, match=f"it has {outputs} output"):
            check_network(outputs, task, names)
