r"""DP-SGD through Opacus: every sample of every client is protected, whoever sees the updates.

In each step a client draws every sample with probability q = batch size / samples, clips each sample's gradient to
norm S, sums, adds :math:`\mathcal N(0, (zS)^2 I)` and divides by the expected batch size. What is protected is a
training sample: a patient, where a patient has one.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from wardround.errors import ConfigError, require
from wardround.randomness import torch_generator
from wardround.threads import one_thread
from wardround.training.base import (
    ClientTask,
    Objective,
    Trained,
    Trainer,
    TrainingParams,
    has_batch_norm,
)
from wardround.updates import Layout

__all__ = ["NoiseSource", "PatientTrainer", "fit_for_patients", "poisson_steps"]

EVALUATED_AT_ONCE = 1024
"""Samples that go forward together where only their loss is wanted."""


def poisson_steps(samples: int, batch_size: int, epochs: int) -> tuple[float, int]:
    """Sampling rate and number of steps of one round of DP-SGD: on average as many samples as ordinary epochs.

    >>> poisson_steps(100, 32, 2)
    (0.32, 8)
    """
    return min(1.0, batch_size / samples), epochs * math.ceil(samples / batch_size)


def fit_for_patients(model: nn.Module, group_norm: bool) -> nn.Module:
    """The model as DP-SGD can train it, or an error that says what to change.

    With `group_norm`, BatchNorm layers become GroupNorm.
    """
    validator = require("opacus.validators", "privacy").ModuleValidator
    if has_batch_norm(model):
        if not group_norm:
            raise ConfigError(
                "privacy.dp unit patient: BatchNorm mixes the patients of a batch, so no patient's gradient is its "
                "own; set privacy.dp.group_norm=true (BatchNorm becomes GroupNorm) or take a model without"
            )
        model = validator.fix(model)
    problems = validator.validate(model, strict=False)
    if problems:
        reason = " ".join(str(problems[0]).split())
        raise ConfigError(f"privacy.dp unit patient: this model has no gradient by patient ({reason})")
    return model


class NoiseSource(Protocol):
    """Randomness that nobody can repeat."""

    def uniform(self, count: int) -> Tensor:
        """`count` numbers in (0, 1]."""
        ...

    def add_gaussian(self, values: Tensor, clip: float, multiplier: float) -> Tensor:
        """The values (D), a sum that one sample changes by at most `clip`, plus noise of `multiplier` times that, in a
        way that is safe in floating point."""
        ...


class PatientTrainer(Trainer):
    """One client after the other, each step private."""

    engine: ClassVar[str] = "opacus"

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        params: TrainingParams,
        clip: float,
        noise_multiplier: float,
        system_noise: NoiseSource | None = None,
    ) -> None:
        """Put a trainer together.

        Args:
            model: what is trained.
            objective: the loss.
            params: optimiser, batch size, epochs.
            clip: the norm S that a sample's gradient is clipped to.
            noise_multiplier: z.
            system_noise: draws batches and noise from the operating system, as every deployment must; None: both
                follow from the task's seed, as in a simulation that can be repeated.
        """
        self.objective, self.params = objective, params
        self.clip, self.noise_multiplier, self.system_noise = clip, noise_multiplier, system_noise
        self.layout = Layout.of(model)
        opacus = require("opacus", "privacy")
        self.network: Any = opacus.GradSampleModule(copy.deepcopy(model).train())
        self.private_optimizer = require("opacus.optimizers", "privacy").DPOptimizer
        self.state = self.network._module.state_dict()

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        if outcomes is not None:
            raise ConfigError("updates with noise per patient cannot be split by outcome")
        matrix = torch.empty(len(tasks), self.layout.size, dtype=global_weights.dtype)
        losses = torch.empty(len(tasks), dtype=torch.float64)
        for row, task in enumerate(tasks):
            start = global_weights if task.weights is None else task.weights
            with one_thread(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                # Samples need no gradient, which is what Opacus's hooks are warned of.
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                torch.random.set_rng_state(torch_generator(task.seed, "dropout").get_state())
                self._load(start)
                losses[row] = self._loss(task)
                self._steps(task, lr, prox_mu)
            matrix[row] = self.layout.flatten(self.state) - start
        return Trained(matrix, losses)

    @torch.no_grad()
    def _load(self, vector: Tensor) -> None:
        for name, value in self.layout.unflatten(vector).items():
            self.state[name].copy_(value)

    @torch.no_grad()
    def _loss(self, task: ClientTask) -> float:
        """The mean loss of the global model on the client's samples, for reports; ε does not cover it."""
        self.network.eval()
        total = 0.0
        for batch in torch.arange(len(task.data)).split(EVALUATED_AT_ONCE):
            inputs, targets = self._inputs(task, batch, None), task.data.targets[batch]
            total += float(self.objective.loss(self.network(inputs), targets)) * len(batch)
        self.network.train()
        return total / len(task.data)

    def _steps(self, task: ClientTask, lr: float, prox_mu: float) -> None:
        n, params = len(task.data), self.params
        rate, steps = poisson_steps(n, params.batch_size, params.epochs)
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        optimizer = self._optimizer(trained, lr, rate * n, torch_generator(task.seed, "dp"))
        anchors = [parameter.detach().clone() for parameter in trained] if prox_mu or task.stealth else []
        sampling, augmentation = torch_generator(task.seed, "poisson"), torch_generator(task.seed, "augment")
        for _ in range(steps):
            source = self.system_noise
            drawn = torch.rand(n, generator=sampling) if source is None else source.uniform(n)
            batch = (drawn < rate).nonzero().flatten()
            optimizer.zero_grad()
            if len(batch):
                logits = self.network(self._inputs(task, batch, augmentation))
                self.objective.loss(logits, task.data.targets[batch]).backward()
            else:  # nobody was drawn: the step is noise alone, or it would tell that nobody was
                for parameter in trained:
                    parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            _drop_infinite(trained)
            optimizer.pre_step()
            if source is not None:  # Opacus has clipped and summed, and added nothing
                total = torch.cat([parameter.summed_grad.flatten() for parameter in trained])
                noisy = source.add_gaussian(total, self.clip, self.noise_multiplier) / (rate * n)
                for parameter, part in zip(trained, noisy.split([p.numel() for p in trained]), strict=True):
                    parameter.grad = part.view_as(parameter)
            if anchors:
                _pull_to_start(trained, anchors, prox_mu, task.stealth)
            optimizer.original_optimizer.step()
        optimizer.zero_grad()

    def _optimizer(self, trained: list[Any], lr: float, batch: float, noise: torch.Generator) -> Any:
        params, inner = self.params, torch.optim
        decay = params.weight_decay
        plain: torch.optim.Optimizer = (
            inner.Adam(trained, lr, weight_decay=decay)
            if params.optimizer == "adam"
            else inner.SGD(trained, lr, momentum=params.momentum, weight_decay=decay)
        )
        return self.private_optimizer(
            plain,
            noise_multiplier=0.0 if self.system_noise is not None else self.noise_multiplier,
            max_grad_norm=self.clip,
            expected_batch_size=batch,
            generator=noise,
        )

    def _inputs(self, task: ClientTask, batch: Tensor, augmentation: torch.Generator | None) -> Tensor:
        inputs = self.objective.prepare(task.data.inputs[task.data.rows[batch]])
        if task.transform is not None:
            inputs = task.transform(inputs)
        if self.objective.augment is not None and augmentation is not None:
            inputs = self.objective.augment(inputs, augmentation)
        return inputs


@torch.no_grad()
def _pull_to_start(trained: Sequence[Any], starts: Sequence[Tensor], prox_mu: float, stealth: float) -> None:
    """Add the gradients of the proximal term, and of a client's wish to stay near its start (see `ClientTask`)."""
    away = [parameter - start for parameter, start in zip(trained, starts, strict=True)]
    distance = math.sqrt(sum(float(part.square().sum()) for part in away))
    pull = prox_mu + (stealth / distance if stealth and distance > 0 else 0.0)
    for parameter, part in zip(trained, away, strict=True):
        parameter.grad.mul_(1 - stealth).add_(part, alpha=pull)


@torch.no_grad()
def _drop_infinite(trained: Sequence[Any]) -> None:
    """Take a sample whose gradient is not finite as one without: clipping bounds no such gradient."""
    finite = torch.stack([p.grad_sample.flatten(1).isfinite().all(1) for p in trained]).all(0)
    if not finite.all():
        for parameter in trained:
            parameter.grad_sample[~finite] = 0
