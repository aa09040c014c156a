"""The network of a run and the engine that trains it: the same for a simulation, a server and a hospital."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from wardround import models
from wardround.datasets.base import Dataset, Task
from wardround.errors import ConfigError
from wardround.privacy.noise import SystemNoise
from wardround.privacy.params import DpParams
from wardround.training.base import Objective, Trainer, TrainingParams
from wardround.training.dp_sgd import PatientTrainer, fit_for_patients
from wardround.training.engines import make_trainer

__all__ = ["build_model", "build_trainer", "objective_of"]


def objective_of(dataset: Dataset) -> Objective:
    """What a network is trained for on this dataset."""
    return Objective(
        dataset.task is Task.MULTICLASS, dataset.prepare, dataset.augment, dataset.task is Task.SURVIVAL
    )


def build_model(
    section: Mapping[str, Any],
    input_shape: Sequence[int],
    task: str,
    classes: int,
    seed: int,
    dp: DpParams | None = None,
) -> nn.Module:
    """The network that a `model:` section names, with its initial weights."""
    params = dict(section)
    outputs = 1 if Task(task).has_one_output else classes
    model = models.build_seeded(
        models.create(params.pop("name"), **params), tuple(input_shape), outputs, seed
    )
    if dp is not None and dp.unit == "patient":
        return fit_for_patients(model, dp.group_norm)
    return model


def build_trainer(
    model: nn.Module,
    dataset: Dataset,
    training: TrainingParams,
    dp: DpParams | None,
    engine: str,
    device: str,
    workers: int | None = None,
    system_noise: bool = False,
) -> Trainer:
    """The engine for this model: DP-SGD where patients are the unit of privacy, else the one that is configured.

    `system_noise`: DP-SGD draws batches and noise from the operating system, as every deployment must.
    """
    objective = objective_of(dataset)
    if dp is not None and dp.unit == "patient":
        if objective.survival:
            raise ConfigError(
                "privacy.dp unit patient: the Cox loss compares the patients of a batch, so no patient's gradient is "
                "its own; privacy.dp unit client works with survival"
            )
        if training.precision == "bf16":
            raise ConfigError(
                "training.precision 'bf16': DP-SGD computes every patient's gradient in float32; "
                "'float32' or 'auto' works"
            )
        source = SystemNoise() if system_noise else None
        return PatientTrainer(model, objective, training, dp.clip, dp.multiplier, source)
    return make_trainer(model, objective, training, engine, device, workers)
