"""One client after the other, for any model: the reference of all engines.

A single network is used over and over. Its parameters are views of one flat buffer and so are its gradients:
setting a client's start, the step of the optimiser and the proximal term are one operation each, whatever
the number of layers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from wardround.errors import ConfigError
from wardround.randomness import seed_for, torch_generator
from wardround.threads import one_thread
from wardround.training.base import (
    ClientTask,
    Objective,
    Precision,
    Trained,
    Trainer,
    TrainingParams,
    batches,
    empty_matrix,
    has_batch_norm,
)
from wardround.training.optimizers import BufferOptimizer
from wardround.updates import Layout

__all__ = ["SequentialTrainer"]


class SequentialTrainer(Trainer):
    """Trains clients one by one, on one thread, in one copy of the network whose weights are set anew for each."""

    engine: ClassVar[str] = "sequential"

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        params: TrainingParams,
        device: torch.device | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.objective, self.params, self.precision = objective, params, precision
        self.device = device or torch.device("cpu")
        self.layout = Layout.of(model)
        self.network = FlatNetwork(model, self.layout, self.device)
        self.optimizer = BufferOptimizer(params, [self.network.weights])
        self.network.attach_gradients(self.optimizer.gradients[0])
        self.smallest_batch = 2 if has_batch_norm(model) else 1

    def train(
        self, global_weights: Tensor, tasks: Sequence[ClientTask], lr: float, prox_mu: float
    ) -> Trained:
        dtype = self.network.weights.dtype
        matrix = empty_matrix(len(tasks), self.layout.size, dtype, torch.device("cpu"))
        losses = torch.empty(len(tasks), dtype=torch.float64)
        for row, task in enumerate(tasks):
            start = global_weights if task.weights is None else task.weights
            losses[row] = self.train_one(start, task, lr, prox_mu, out=matrix[row])
        return Trained(matrix.to(global_weights.device), losses.to(global_weights.device))

    def train_one(self, start: Tensor, task: ClientTask, lr: float, prox_mu: float, out: Tensor) -> float:
        """Write one client's update (D) into `out`. Returns its mean loss over its samples and epochs."""
        with one_thread(), _dropout_of(task, self.device):
            self.network.load(start)
            self.optimizer.begin(lr, rows=1)
            loss = self._epochs(task, prox_mu)
            self.network.save_update(start, out)
        return loss

    def _epochs(self, task: ClientTask, prox_mu: float) -> float:
        network, data, objective = self.network, task.data, self.objective
        view = self.optimizer.view(1)
        anchor = network.weights.clone() if prox_mu else None
        augmentation = torch_generator(task.seed, "augment")
        targets = data.targets.to(self.device)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        samples = 0
        p = self.params
        for batch in batches(task, p.batch_size, p.epochs, self.smallest_batch, p.steps):
            inputs = objective.prepare(data.inputs[data.rows[batch]].to(self.device))
            if task.transform is not None:
                inputs = task.transform(inputs)
            if objective.augment is not None:
                inputs = objective.augment(inputs, augmentation)
            network.gradients.zero_()
            with self._autocast():
                logits = network(inputs)
            loss = objective.loss(logits.to(network.weights.dtype), targets[batch])
            loss.backward()
            if anchor is not None:
                network.gradients.add_(network.weights - anchor, alpha=prox_mu)
            self.optimizer.step(view)
            total += loss.detach() * len(batch)
            samples += len(batch)
        return float(total) / samples

    def _autocast(self) -> torch.autocast:
        """Convolutions and products inside are computed in bf16, where that is the precision.

        The weights that the optimiser steps stay as they are: a step is often smaller than bf16 can tell.
        """
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


class FlatNetwork:
    """A copy of a network whose trained parameters lie end to end in one buffer of shape 1 × P.

    Filters of two-dimensional convolutions lie with their channels last, which is the order in which the CPU's
    and the GPU's kernels want them.
    """

    def __init__(self, model: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = copy.deepcopy(model).to(device).train()
        self.layout = layout
        self.trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if len({parameter.dtype for parameter in self.trained}) != 1:
            raise ConfigError("a model's trained parameters must all be of one floating-point type")
        self.channels_last = any(isinstance(layer, nn.Conv2d) for layer in self.module.modules())
        for layer in self.module.modules() if self.channels_last else ():
            if isinstance(layer, nn.Dropout):
                # Masks are drawn in the order of memory: in the usual one they are the usual masks.
                layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
        total = sum(parameter.numel() for parameter in self.trained)
        self.weights = torch.empty(1, total, dtype=self.trained[0].dtype, device=device)
        self.gradients = torch.zeros_like(self.weights)
        for parameter, place in zip(self.trained, self._places(self.weights), strict=True):
            place.copy_(parameter.detach())
            parameter.data = place
        self.state = self.module.state_dict()  # views of the network's own memory
        # Counters are no part of what travels; left running, one client's would reach the next.
        self.counters = [
            (value, value.clone()) for name, value in self.state.items() if name not in layout.slices
        ]

    def attach_gradients(self, buffer: Tensor) -> None:
        """Let gradients be written into this buffer, of the shape of the weights."""
        self.gradients = buffer
        for parameter, place in zip(self.trained, self._places(buffer), strict=True):
            parameter.grad = place

    def _places(self, buffer: Tensor) -> list[Tensor]:
        """The part of the buffer (1 × P) for each parameter, in the parameter's shape."""
        places = []
        pieces = buffer[0].split([parameter.numel() for parameter in self.trained])
        for parameter, piece in zip(self.trained, pieces, strict=True):
            if self.channels_last and parameter.dim() == 4:
                outputs, inputs, height, width = parameter.shape
                places.append(piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2))
            else:
                places.append(piece.view(parameter.shape))
        return places

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.module(inputs)
        return logits

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Set weights and statistics from a flat vector (D)."""
        for name, value in self.layout.unflatten(vector).items():
            self.state[name].copy_(value)
        for counter, initial in self.counters:
            counter.copy_(initial)

    @torch.no_grad()
    def save_update(self, start: Tensor, out: Tensor) -> None:
        """Write the weights and statistics minus `start` (D) into `out` (D)."""
        for name, place in self.layout.unflatten(out).items():
            place.copy_(self.state[name])
        out.sub_(start.to(out.device, out.dtype))


@contextmanager
def _dropout_of(task: ClientTask, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's global generator: give it the client's stream, then put it back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.random.set_rng_state(torch_generator(task.seed, "dropout").get_state())
        if device.type == "cuda":
            torch.cuda.manual_seed(seed_for(task.seed, "dropout"))
        yield
