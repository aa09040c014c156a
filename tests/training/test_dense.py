import pytest
import torch
from torch import nn

from wardround import models
from wardround.training.dense import DenseStack, NotDense


def test_the_registered_dense_models_are_read():
    mlp = models.create("mlp", hidden=[6, 4], dropout=0.3).build((2, 3), outputs=5)
    stack = DenseStack.of(mlp)
    assert [(s.inputs, s.outputs, s.relu, s.dropouts) for s in stack.stages] == [
        (6, 6, True, (0.3,)),
        (6, 4, True, (0.3,)),
        (4, 5, False, ()),
    ]
    assert stack.size == sum(p.numel() for p in mlp.parameters())
    assert len(DenseStack.of(models.create("logistic").build((7,), outputs=1)).stages) == 1


def test_nested_chains_and_layers_without_bias_are_read():
    inner = nn.Sequential(nn.Dropout(0.1), nn.ReLU(), nn.Identity())
    stack = DenseStack.of(nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 4, bias=False), inner, nn.Linear(4, 2)))
    assert stack.input_dropouts == (0.2,)
    assert stack.stages[0].bias is None
    assert stack.stages[0].dropouts == (0.1,)
    assert stack.stages[1].weight == slice(12, 20)


TWICE = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 1)), "it has a Conv2d"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "it has a BatchNorm1d"),
        (nn.Sequential(nn.ReLU()), "no linear layer"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 1)), "before the first"),
        (nn.Sequential(nn.Linear(3, 1), nn.ReLU()), "follows the last"),
        (nn.Sequential(TWICE, nn.ReLU(), TWICE), "used twice"),
        (nn.Sequential(TWICE, nn.Sequential(TWICE)), "used twice"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0), nn.Linear(3, 1)), "drops everything"),
        (nn.Sequential(nn.Flatten(2), nn.Linear(3, 1)), "keeps dimensions"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1).to(torch.float64)), "several types"),
        (nn.Sequential(nn.Linear(3, 1).requires_grad_(False)), "frozen"),
    ],
)
def test_what_is_not_dense_is_refused_with_a_reason(model, why):
    with pytest.raises(NotDense, match=why):
        DenseStack.of(model)
