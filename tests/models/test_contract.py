"""What every registered model promises."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from wardround import models
from wardround.errors import ConfigError
from wardround.models.base import build_seeded
from wardround.updates import Layout

NO_MONAI = importlib.util.find_spec("monai") is None


def marks(extra):
    """Networks of other packages are large, and those packages may be missing."""
    return [pytest.mark.slow, pytest.mark.skipif(NO_MONAI, reason="MONAI is not installed")] if extra else []


CASES = [
    pytest.param(name, shape, id=f"{name}-{'x'.join(map(str, shape))}", marks=marks(member.extra))
    for name, member in ((name, models.registry.get(name)) for name in models.available())
    for shape in member.example_shapes
]


@pytest.mark.parametrize("name", models.available())
def test_every_model_says_what_it_takes(name):
    """A model is tested with the shapes it declares: no list of models is kept here."""
    assert models.registry.get(name).example_shapes, f"{name} declares no example_shapes"


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("outputs", [1, 4])
def test_forward_backward_and_layout(name, shape, outputs):
    torch.manual_seed(5)
    model = build_seeded(models.create(name), shape, outputs, seed=3)
    inputs = torch.randn(3, *shape)
    logits = model(inputs)
    assert logits.shape == (3, outputs)
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    layout = Layout.of(model)
    flat = layout.flatten(model.state_dict())
    assert flat.shape == (layout.size,)
    back = layout.unflatten(flat)
    assert all(torch.equal(back[key], model.state_dict()[key]) for key in layout.names)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_initial_weights_depend_on_the_seed_alone(name, shape):
    def flat(seed: int) -> torch.Tensor:
        model = build_seeded(models.create(name), shape, 2, seed)
        return Layout.of(model).flatten(model.state_dict())

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = flat(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(flat(3), first)
    assert not torch.equal(flat(4), first)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("medical-cnn", (1, 15, 40), "at least 16 × 16 pixels, the dataset's have 15 × 40"),
        ("dos-cnn", (3, 8, 8), "at least 16 × 16"),
        ("resnet18", (3, 27, 27), "at least 28 × 28"),
        ("efficientnet-b0", (1, 28, 28), "at least 32 × 32"),
        ("resnet18", (30,), "wants images"),
        ("gru", (30,), "wants series"),
        ("cnn1d", (3, 5), "at least 4 points in time"),
    ],
)
def test_shapes_that_do_not_fit(name, shape, says):
    with pytest.raises(ConfigError, match=says):
        models.create(name).build(shape, 1)


def test_smallest_shapes_are_what_the_errors_say():
    for name in ("medical-cnn", "dos-cnn"):
        models.create(name).build((1, 16, 16), 2).eval()(torch.zeros(1, 1, 16, 16))


def test_medical_cnn_has_the_layers_of_its_description():
    model = models.create("medical-cnn").build((1, 224, 224), outputs=4)
    convolutions = 1 * 32 * 9 + 32 + 32 * 64 * 9 + 64 + 64 * 128 * 9 + 128 + 128 * 256 * 9 + 256
    normalisation = 2 * (32 + 64 + 128 + 256)
    dense = 256 * 16 * 128 + 128 + 128 * 4 + 4
    assert sum(p.numel() for p in model.parameters()) == convolutions + normalisation + dense == 913_732
    kinds = [type(layer).__name__ for layer in model]
    block = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds == [
        *block, *block, "HalvingMaxPool", *block, *block, "HalvingMaxPool", "AdaptiveAvgPool2d", "Flatten", "Dropout",
        "Linear", "ReLU", "Dropout", "Linear",
    ]  # fmt: skip


def test_series_models_look_at_all_of_time():
    """An early event must be able to change the answer; a model must not see features as time."""
    for name in ("gru", "cnn1d"):
        torch.manual_seed(0)
        model = models.create(name).build((48, 5), 1).eval()
        base = torch.zeros(1, 48, 5)
        early = base.clone()
        early[0, 0, 2] = 5.0
        assert not torch.equal(model(base), model(early))


@pytest.mark.slow
@pytest.mark.skipif(NO_MONAI, reason="MONAI is not installed")
def test_large_images_start_with_a_stride():
    small = models.create("resnet18").build((1, 32, 32), 1)
    large = models.create("resnet18").build((1, 64, 64), 1)
    assert (small.conv1.stride, large.conv1.stride) == ((1, 1), (2, 2))
    assert models.create("resnet18", first_stride=1).build((1, 64, 64), 1).conv1.stride == (1, 1)
