"""The network that an order is about, and who trains it: the same on the server and in every hospital."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from wardround import models
from wardround.datasets import Dataset
from wardround.datasets.base import Task
from wardround.federation.client_half import objective_of
from wardround.privacy.params import DpParams
from wardround.runs.config import RunConfig
from wardround.training.base import Trainer, TrainingParams
from wardround.training.dp_sgd import PatientTrainer, fit_for_patients
from wardround.training.engines import make_trainer

__all__ = ["network_of", "order_of", "trained_for", "work_of"]

WORK = ("model", "training", "seed", "rounds", "dp")
"""What of an order decides the network and how it is trained."""


def order_of(run: RunConfig) -> dict[str, Any]:
    """What every order of a run says of the work."""
    plain = run.plain()
    return {**{key: plain[key] for key in WORK if key != "dp"}, "dp": plain["privacy"].get("dp")}


def work_of(head: Mapping[str, Any]) -> str:
    """An order's work as one string: the same for the same work."""
    return json.dumps({key: head.get(key) for key in WORK}, sort_keys=True)


def network_of(work: str, input_shape: Sequence[int], task: str, classes: int) -> nn.Module:
    """The network, with its initial weights."""
    order = json.loads(work)
    section = dict(order["model"])
    outputs = 1 if task == Task.BINARY.value else classes
    model = models.build_seeded(
        models.create(section.pop("name"), **section), tuple(input_shape), outputs, order["seed"]
    )
    dp = _dp(order)
    return fit_for_patients(model, dp) if dp is not None and dp.unit == "patient" else model


@lru_cache(maxsize=4)
def trained_for(
    dataset: Dataset, work: str, engine: str, device: str
) -> tuple[nn.Module, Trainer, TrainingParams]:
    """The network and its trainer, shared by all hospitals of a process that have the same data and work."""
    order = json.loads(work)
    training, dp = TrainingParams(**order["training"]), _dp(order)
    model = network_of(work, dataset.input_shape, dataset.task.value, len(dataset.class_names))
    if dp is not None and dp.unit == "patient":
        return model, PatientTrainer(model, objective_of(dataset), training, dp), training
    return model, make_trainer(model, objective_of(dataset), training, engine, device, workers=1), training


def _dp(order: Mapping[str, Any]) -> DpParams | None:
    return None if order["dp"] is None else DpParams(**order["dp"])
