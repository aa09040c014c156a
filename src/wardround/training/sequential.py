"""One client after the other: the reference engine, for any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from wardround.randomness import torch_generator
from wardround.training.base import (
    ClientTask,
    Objective,
    Trained,
    Trainer,
    TrainingParams,
    batches,
    has_batch_norm,
)
from wardround.updates import Layout

__all__ = ["SequentialTrainer"]


class SequentialTrainer(Trainer):
    """Trains clients one by one in a single network whose weights are laid in anew for each."""

    engine: ClassVar[str] = "sequential"

    def __init__(self, model: nn.Module, objective: Objective, params: TrainingParams) -> None:
        self.model, self.objective, self.params = model, objective, params
        self.layout = Layout.of(model)
        self.tensors = model.state_dict()  # views of the network's own memory
        self.smallest_batch = 2 if has_batch_norm(model) else 1

    def train(
        self, global_weights: Tensor, tasks: Sequence[ClientTask], lr: float, prox_mu: float
    ) -> Trained:
        matrix = torch.empty(len(tasks), self.layout.size)
        losses = torch.empty(len(tasks), dtype=torch.float64)
        for row, task in enumerate(tasks):
            start = global_weights if task.weights is None else task.weights
            losses[row] = self._train_one(start, task, lr, prox_mu)
            torch.sub(self.layout.flatten(self.tensors), start, out=matrix[row])
        return Trained(matrix, losses)

    def _train_one(self, start: Tensor, task: ClientTask, lr: float, prox_mu: float) -> float:
        with torch.no_grad():
            for name, value in self.layout.unflatten(start).items():
                self.tensors[name].copy_(value)
        parameters = dict(self.model.named_parameters())
        anchors = self.layout.unflatten(start)
        optimizer = self._optimizer(lr)
        self.model.train()
        total, samples = 0.0, 0
        # Dropout draws from torch's global generator: give it the client's stream, then put it back.
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(torch_generator(task.seed, "dropout").get_state())
            augmentation = torch_generator(task.seed, "augment")
            for batch in batches(task, self.params.batch_size, self.params.epochs, self.smallest_batch):
                inputs = self.objective.prepare(task.data.inputs[task.data.rows[batch]])
                if self.objective.augment is not None:
                    inputs = self.objective.augment(inputs, augmentation)
                optimizer.zero_grad()
                loss = self.objective.loss(self.model(inputs), task.data.targets[batch])
                loss.backward()
                if prox_mu:
                    for name, parameter in parameters.items():
                        assert parameter.grad is not None
                        parameter.grad.add_(parameter.detach() - anchors[name], alpha=prox_mu)
                optimizer.step()
                total += loss.item() * len(batch)
                samples += len(batch)
        return total / samples

    def _optimizer(self, lr: float) -> torch.optim.Optimizer:
        p = self.params
        if p.optimizer == "adam":
            return torch.optim.Adam(self.model.parameters(), lr=lr, weight_decay=p.weight_decay)
        return torch.optim.SGD(
            self.model.parameters(), lr=lr, momentum=p.momentum, weight_decay=p.weight_decay
        )
