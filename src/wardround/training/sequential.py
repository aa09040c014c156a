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
from wardround.training.outcome_parts import OutcomeParts
from wardround.training.relu_pooling import fuse_relu_and_pooling
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
        self._parts: OutcomeParts | None = None

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        dtype, size = self.network.weights.dtype, self.layout.size
        matrix = empty_matrix(len(tasks), size, dtype, torch.device("cpu"))
        parts = None if outcomes is None else torch.empty(len(tasks), outcomes, size, dtype=dtype)
        losses = torch.empty(len(tasks), dtype=torch.float64)
        for row, task in enumerate(tasks):
            start = global_weights if task.weights is None else task.weights
            own_parts = None if parts is None else parts[row]
            losses[row] = self.train_one(start, task, lr, prox_mu, out=matrix[row], parts_out=own_parts)
        device = global_weights.device
        return Trained(matrix.to(device), losses.to(device), None if parts is None else parts.to(device))

    def train_one(
        self,
        start: Tensor,
        task: ClientTask,
        lr: float,
        prox_mu: float,
        out: Tensor,
        parts_out: Tensor | None = None,
    ) -> float:
        """Write one client's update (D) into `out`. Returns its mean loss over its samples and epochs.

        With `parts_out` (C × D), the parts of C outcomes are written there.
        """
        with one_thread(), _dropout_of(task, self.device):
            self.network.load(start)
            self.optimizer.begin(lr, rows=1)
            shares = None
            parts = None
            if parts_out is not None:
                shares = torch.bincount(task.data.targets, minlength=len(parts_out)) / len(task.data)
                parts = self._begin_parts(shares)
            loss = self._epochs(task, prox_mu, parts)
            self.network.save_update(start, out)
            if parts is not None and parts_out is not None and shares is not None:
                self.network.save_parts(parts, out, shares, parts_out)
        return loss

    def _begin_parts(self, shares: Tensor) -> OutcomeParts:
        """Empty parts of outcomes with these shares of the client's samples, in the same memory each time."""
        if self._parts is None or len(self._parts.parts) != len(shares) - 1:
            self._parts = OutcomeParts(self.optimizer, len(shares))
        self._parts.begin(shares[None])
        return self._parts

    def _epochs(self, task: ClientTask, prox_mu: float, parts: OutcomeParts | None) -> float:
        network, data, objective = self.network, task.data, self.objective
        view = self.optimizer.view(1)
        anchor = network.weights.clone() if prox_mu or task.stealth else None
        correction = None if task.correction is None else network.in_own_order(task.correction)
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
            logits = logits.to(network.weights.dtype)
            loss = objective.loss(logits, targets[batch])
            if parts is not None:
                self._split_gradient(logits, targets[batch], parts, anchor, prox_mu)
            loss.backward()
            if anchor is not None:
                away = network.weights.detach() - anchor
                if task.stealth:  # the gradient of ‖w − w_start‖ is the unit vector away from w_start
                    distance = float(away.norm())
                    network.gradients.mul_(1 - task.stealth)
                    network.gradients.add_(away, alpha=task.stealth / distance if distance > 0 else 0.0)
                network.gradients.add_(away, alpha=prox_mu)
            if correction is not None:
                network.gradients.add_(correction)
            self.optimizer.step(view)
            if parts is not None:
                parts.step(view)
            total += loss.detach() * len(batch)
            samples += len(batch)
        return float(total) / samples

    def _autocast(self) -> torch.autocast:
        """Convolutions and products inside are computed in bf16, where that is the precision.

        The weights that the optimiser steps stay as they are: a step is often smaller than bf16 can tell.
        """
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def _split_gradient(
        self, logits: Tensor, targets: Tensor, parts: OutcomeParts, anchor: Tensor | None, prox_mu: float
    ) -> None:
        """The share of each outcome but the last in the gradient of a batch, before the batch's own backward pass."""
        network = self.network
        losses = self.objective.losses(logits, targets)
        for outcome, (gradient,) in enumerate(parts.gradients):
            chosen = targets == outcome
            if bool(chosen.any()):
                (losses[chosen].sum() / len(losses)).backward(retain_graph=True)
            gradient.copy_(network.gradients)
            network.gradients.zero_()
        pull = self.params.weight_decay * network.weights
        if anchor is not None:
            pull = pull + prox_mu * (network.weights - anchor)
        if self.params.weight_decay or anchor is not None:
            shares = torch.bincount(targets, minlength=len(parts.parts) + 1) / len(targets)
            parts.add_to_gradients([pull], shares[None].to(pull))


class FlatNetwork:
    """A copy of a network whose trained parameters lie end to end in one buffer of shape 1 × P.

    Filters of two-dimensional convolutions lie with their channels last, which is the order in which the CPU's
    and the GPU's kernels want them.
    """

    def __init__(self, model: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = copy.deepcopy(model).to(device).train()
        if device.type == "cpu":
            fuse_relu_and_pooling(self.module)
        self.layout = layout
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        self.trained_names, self.trained = list(trained), list(trained.values())
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

    @torch.no_grad()
    def in_own_order(self, vector: Tensor) -> Tensor:
        """What a flat vector (D) has for the trained parameters, in the order of the buffer (1 × P)."""
        buffer = torch.empty_like(self.weights)
        values = self.layout.unflatten(vector)
        for name, place in zip(self.trained_names, self._places(buffer), strict=True):
            place.copy_(values[name])
        return buffer

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

    @torch.no_grad()
    def save_parts(self, parts: OutcomeParts, update: Tensor, shares: Tensor, out: Tensor) -> None:
        """Write the parts of all outcomes (C × D) into `out`.

        Args:
            parts: Of all outcomes but the last, in the order of the buffer.
            update: D values, the sum of all parts.
            shares: C shares of samples: what is not trained (running statistics) is split by them.
            out: C × D.
        """
        torch.outer(shares.to(update), update, out=out)
        for (buffer,), row in zip(parts.parts, out, strict=False):
            places = self.layout.unflatten(row)
            for name, values in zip(self.trained_names, self._places(buffer), strict=True):
                places[name].copy_(values)
        out[-1] = update - out[:-1].sum(0)


@contextmanager
def _dropout_of(task: ClientTask, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's global generator: give it the client's stream, then put it back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.random.set_rng_state(torch_generator(task.seed, "dropout").get_state())
        if device.type == "cuda":
            torch.cuda.manual_seed(seed_for(task.seed, "dropout"))
        yield
