"""A user's own network: does it fit the data, and does it give logits?"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from wardround.datasets.base import Task
from wardround.errors import ConfigError, WardroundWarning

__all__ = ["check_network", "outputs_of"]

PROBED = 64
"""Rows on which a network is tried before it is trained."""
PROBABILITIES = (nn.Sigmoid, nn.Softmax, nn.LogSoftmax)


def outputs_of(source: nn.Module | Callable[[], nn.Module], inputs: Tensor) -> int:
    """How many logits per row the network gives for such inputs; an error where it gives something else."""
    network = _network(source)
    rows = inputs[:PROBED]
    answer = _try(network, rows)
    if not isinstance(answer, Tensor):
        raise ConfigError(f"model: its output must be a tensor of logits, got {type(answer).__name__}")
    if answer.ndim != 2 or len(answer) != len(rows):
        hint = "; drop the squeeze at its end" if answer.shape == (len(rows),) else ""
        raise ConfigError(
            f"model: {len(rows)} rows must give logits of the shape ({len(rows)}, outputs), got "
            f"{tuple(answer.shape)}{hint}"
        )
    _check_logits(network, rows, answer)
    return answer.shape[1]


def check_network(outputs: int, task: Task, class_names: tuple[str, ...]) -> None:
    """Raise where a network has another number of outputs than the labels need."""
    classes = len(class_names)
    allowed = {1} if task.has_one_output else {classes}
    if outputs not in allowed:
        wanted = "1 output (or 2)" if classes == 2 and task is not Task.MULTILABEL else f"{classes} outputs"
        raise ConfigError(
            f"model: it has {outputs} output{'s' if outputs > 1 else ''}, but the labels "
            f"{', '.join(class_names[:5])}{' …' if classes > 5 else ''} need {wanted}"
        )


def _network(source: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    if isinstance(source, nn.Module):
        network = source
    else:
        with torch.random.fork_rng(devices=[]):
            try:
                network = source()
            except TypeError as error:
                raise ConfigError(
                    f"model: give a network, or a function without arguments that makes one ({error})"
                ) from None
        if not isinstance(network, nn.Module):
            raise ConfigError(f"model: expected a torch.nn.Module, got {type(network).__name__}")
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError("model: it has no parameters that can be trained")
    others = {str(p.dtype).removeprefix("torch.") for p in parameters if p.dtype != torch.float32}
    if others:
        raise ConfigError(
            f"model: its parameters must be float32, not {', '.join(others)}; call model.float()"
        )
    if any(p.device.type != "cpu" for p in parameters):
        raise ConfigError("model: give it on the CPU, model.cpu(); device='cuda' says where it is trained")
    return network


def _try(network: nn.Module, rows: Tensor) -> Tensor:
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            answer: Tensor = network(rows)
            return answer
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model: it cannot take a batch of the shape {tuple(rows.shape)}: {reason}"
        ) from error
    finally:
        network.train(was_training)


def _check_logits(network: nn.Module, rows: Tensor, answer: Tensor) -> None:
    """Training wants logits. A network that ends in probabilities would learn next to nothing, silently."""
    leaves = [layer for layer in network.modules() if not list(layer.children())]
    if isinstance(leaves[-1], PROBABILITIES):
        raise ConfigError(
            f"model: it must give logits, but its last layer is {type(leaves[-1]).__name__}; remove that layer"
        )
    if answer.shape[1] > 1 and torch.allclose(answer.sum(1), torch.ones(len(answer)), atol=1e-4):
        raise ConfigError(
            "model: it must give logits, but each row of its output sums to 1; remove the softmax"
        )
    larger = _try(network, 1000 * rows)
    if all(bool(((values >= 0) & (values <= 1)).all()) for values in (answer, larger)):
        warnings.warn(
            "the model's outputs are all between 0 and 1: it must give logits, without a sigmoid at its end",
            WardroundWarning,
            stacklevel=4,
        )
