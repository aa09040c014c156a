"""Networks as files: named weights (safetensors) and ONNX."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from wardround.datasets.base import Task
from wardround.errors import DataError, WardroundError, require
from wardround.federation.model_factory import build_model
from wardround.runs.export.inputs import ModelInputs
from wardround.runs.export.manifest import Manifest
from wardround.training.dp_sgd import fit_for_patients
from wardround.updates import Layout

__all__ = [
    "NotExportable",
    "load_weights",
    "network_of",
    "onnx_bytes",
    "probabilities",
    "second_output",
    "weights_bytes",
    "weights_from_bytes",
]


class NotExportable(WardroundError):
    """A network that cannot be written as ONNX, or not so that it gives the same answers."""


TOLERANCE = 1e-4
"""How far ONNX's logits may be from torch's, relatively to their size: other kernels round differently."""


def network_of(manifest: Manifest) -> nn.Module:
    """The network that a manifest describes, with weights that mean nothing yet."""
    classes = len(manifest.class_names)
    network = build_model(manifest.model, manifest.input_shape, manifest.task, classes, seed=0)
    return fit_for_patients(network, group_norm=True) if manifest.group_norm else network


def load_weights(network: nn.Module, weights: Tensor) -> nn.Module:
    """The network with these weights (flat), ready to predict."""
    layout, tensors = Layout.of(network), network.state_dict()
    with torch.no_grad():
        for name, value in layout.unflatten(weights).items():
            tensors[name].copy_(value)
    return network.eval()


def weights_bytes(weights: Tensor, layout: Layout) -> bytes:
    """The content of model.safetensors: every tensor under its name. The same weights give the same bytes."""
    from safetensors.torch import save

    named = {name: value.contiguous().clone() for name, value in layout.unflatten(weights).items()}
    return save(named, metadata={"format": "pt"})  # two entries would be in a random order


def weights_from_bytes(content: bytes, layout: Layout, where: object) -> Tensor:
    """The flat weights out of a model.safetensors, or an error that names the first tensor that does not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        named = load(content)
    except (SafetensorError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise DataError(f"{where}: not a safetensors file ({error})") from None
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if name not in named:
            raise DataError(f"{where}: has no tensor '{name}', which the model has")
        if tuple(named[name].shape) != shape:
            raise DataError(
                f"{where}: '{name}' has shape {list(named[name].shape)}, where the model has {list(shape)}"
            )
    if extra := sorted(set(named) - set(layout.names)):
        raise DataError(f"{where}: has a tensor '{extra[0]}', which the model has not")
    return layout.flatten(named)


def probabilities(logits: Tensor, task: str) -> Tensor:
    """n × 1 for a binary task (of the positive class), n × classes else; findings each by itself.

    A survival task has none: its n × 1 log hazards are given as they are.
    """
    if task == Task.SURVIVAL.value:
        return logits
    return torch.softmax(logits, 1) if task == Task.MULTICLASS.value else torch.sigmoid(logits)


class _WithProbabilities(nn.Module):
    """What goes into an ONNX file: logits, and the probabilities (or hazard ratios) that they stand for."""

    def __init__(self, network: nn.Module, task: str) -> None:
        super().__init__()
        self.network, self.task = network, task

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(samples)
        if self.task == Task.SURVIVAL.value:
            return logits, logits.exp()
        return logits, probabilities(logits, self.task)


def second_output(task: str) -> str:
    """What model.onnx gives beside logits."""
    return "hazard_ratios" if task == Task.SURVIVAL.value else "probabilities"


def onnx_bytes(network: nn.Module, inputs: ModelInputs) -> bytes:
    """The content of model.onnx: `input` (rows × …) in, `logits` and `probabilities` out (`hazard_ratios` of a survival
    task).

    Written by torch's exporter; where onnxruntime is installed, its answers are compared with the network's.
    """
    for module in ("onnx", "onnxscript"):
        require(module, "export")
    network.eval()
    _start_autograd()
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(3, *inputs.input_shape, generator=random)
    with _quiet():
        try:
            program = torch.onnx.export(
                _WithProbabilities(network, inputs.task).eval(),
                (samples,),
                input_names=["input"],
                output_names=["logits", second_output(inputs.task)],
                dynamic_shapes={"samples": {0: torch.export.Dim("rows")}},
                dynamo=True,
                verbose=False,
            )
        except (
            Exception
        ) as error:  # of torch's exporter: whatever a plug-in's network does that ONNX cannot say
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotExportable(f"this network cannot be written as ONNX ({reason}); use --no-onnx") from None
    assert program is not None  # what the exporter gives where it writes no file
    content: bytes = program.model_proto.SerializeToString()
    # With other samples, and another number of them: a value that was written down as a constant shows then.
    _compare(content, network, torch.randn(5, *inputs.input_shape, generator=random))
    return content


def _start_autograd() -> None:
    """Let autograd decide now which threads it needs.

    In builds of torch with CUDA, also without a GPU, the exporter makes a device known for which autograd would start a
    thread at its first use, and then no process with that thread can be forked for training (engine `processes`).
    """
    torch.ones((), requires_grad=True).backward()


def _compare(content: bytes, network: nn.Module, samples: Tensor) -> None:
    """Raise an error where the ONNX file gives other logits than the network; nothing without onnxruntime."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = network(samples)
    given = torch.from_numpy(session.run(["logits"], {"input": samples.numpy()})[0])
    furthest = float((given - expected).abs().max())
    if not furthest <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise NotExportable(f"model.onnx gives other logits than the network (by up to {furthest:g})")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch's exporter says of its own parts out of our output."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
