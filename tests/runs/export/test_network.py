"""Networks as files: ONNX and safetensors give what the network gives."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from wardround import models
from wardround.errors import DataError, MissingExtra
from wardround.runs.export import network as subject
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.network import (
    NotExportable,
    load_weights,
    onnx_bytes,
    probabilities,
    weights_bytes,
    weights_from_bytes,
)
from wardround.updates import Layout

NETWORKS = {
    "table": ("mlp", (7,), "binary", 1),
    "several classes": ("logistic", (5,), "multi-class", 4),
    "images with BatchNorm": ("medical-cnn", (1, 16, 16), "multi-label", 3),
}


def build(name, shape, outputs):
    """A network whose BatchNorm has seen something."""
    network = models.build_seeded(models.create(name), shape, outputs, seed=1)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(8, *shape) * 2 + 1)
    return network.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_onnx_gives_the_networks_outputs(kind):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    name, shape, task, outputs = NETWORKS[kind]
    network = build(name, shape, outputs)
    classes = ("no", "yes") if task == "binary" else tuple("abcd"[:outputs])
    content = onnx_bytes(network, ModelInputs(task, classes, shape))
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for rows in (1, 9):  # other numbers of rows than it was traced with
        samples = torch.randn(rows, *shape)
        logits, shares = session.run(["logits", "probabilities"], {"input": samples.numpy()})
        with torch.no_grad():
            expected = network(samples)
        np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(shares, probabilities(expected, task).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_onnx_file_that_says_something_else_is_refused(monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    network = build("logistic", (5,), 1)
    inputs = ModelInputs("binary", ("no", "yes"), (5,))
    content = onnx_bytes(network, inputs)
    with torch.no_grad():
        next(iter(network.parameters())).add_(0.5)
    with pytest.raises(NotExportable, match="other logits than the network"):
        subject._compare(content, network, torch.randn(3, 5))


@pytest.mark.slow
def test_a_network_that_was_traced_wrongly_is_refused():
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")

    class Wayward(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 1)

        def forward(self, samples):
            return self.linear(samples) * (2 if torch.compiler.is_exporting() else 1)

    with pytest.raises(NotExportable, match="other logits than the network") as problem:
        onnx_bytes(Wayward(), ModelInputs("binary", ("no", "yes"), (5,)))
    assert "\n" not in str(problem.value)


@pytest.mark.slow
def test_a_network_that_cannot_be_traced_is_one_line():
    pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")

    class Broken(nn.Module):
        def forward(self, samples):
            raise RuntimeError("no\nway")

    with pytest.raises(NotExportable, match=r"cannot be written as ONNX .*; use --no-onnx") as problem:
        onnx_bytes(Broken(), ModelInputs("binary", ("no", "yes"), (5,)))
    assert "\n" not in str(problem.value)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    import importlib

    real = importlib.import_module

    def without_onnx(name, *rest):
        if name == "onnx":
            raise ModuleNotFoundError("No module named 'onnx'", name="onnx")
        return real(name, *rest)

    monkeypatch.setattr("wardround.errors.importlib.import_module", without_onnx)
    with pytest.raises(MissingExtra, match=r"pip install 'wardround\[export\]'"):
        onnx_bytes(build("logistic", (5,), 1), ModelInputs("binary", ("no", "yes"), (5,)))


def test_named_weights_come_back_as_they_were():
    from safetensors.torch import load

    network = build("medical-cnn", (1, 16, 16), 2)
    layout = Layout.of(network)
    flat = layout.flatten(network.state_dict())
    content = weights_bytes(flat, layout)
    named = load(content)
    assert set(named) == set(layout.names)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in named.items())
    assert torch.equal(weights_from_bytes(content, layout, "here"), flat)
    other = build("medical-cnn", (1, 16, 16), 2)
    with torch.no_grad():
        for value in other.state_dict().values():
            value.zero_()
    samples = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(load_weights(other, flat)(samples), network(samples))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda named: named.pop("0.bias"), "has no tensor '0.bias'"),
        (lambda named: named.update({"0.bias": torch.zeros(3)}), r"'0.bias' has shape \[3\], where .* \[1\]"),
        (lambda named: named.update(more=torch.zeros(1)), "has a tensor 'more', which the model has not"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named(change, message):
    from safetensors.torch import save

    layout = Layout.of(build("logistic", (5,), 1))
    named = {name: torch.zeros(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    change(named)
    with pytest.raises(DataError, match=message):
        weights_from_bytes(save(named), layout, "here")


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"\x80\x04N.", b'{"a": 1}'])
def test_what_is_no_safetensors_file_is_one_line(content):
    layout = Layout.of(build("logistic", (5,), 1))
    with pytest.raises(DataError, match="here: not a safetensors file"):
        weights_from_bytes(content, layout, "here")


EXPORT_THEN_FORK = """
import os, warnings, torch
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.network import onnx_bytes
warnings.simplefilter("ignore")
onnx_bytes(torch.nn.Linear(3, 1), ModelInputs("binary", ("no", "yes"), (3,)))
def train(): torch.ones(3, requires_grad=True).sum().backward()
train()
child = os.fork()
if not child:
    try:
        train()
    except RuntimeError:
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the forked process cannot train"
"""


@pytest.mark.slow
def test_processes_can_be_forked_for_training_after_an_export():
    """In a process of its own, since autograd starts once. Only torch's builds with CUDA ever failed here."""
    pytest.importorskip("onnxscript")
    done = subprocess.run(
        [sys.executable, "-c", EXPORT_THEN_FORK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
