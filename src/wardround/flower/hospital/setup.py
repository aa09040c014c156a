"""What the work of an order needs: network, training engine and evaluator, built once for every kind of work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from wardround import models
from wardround.datasets import Dataset
from wardround.errors import WardroundError
from wardround.federation.client import Client, LocalWork
from wardround.federation.evaluation import Evaluator
from wardround.federation.model_factory import build_model, build_trainer
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.messages import Note
from wardround.flower.orders import CONTROL, dp_of, work_key
from wardround.training.base import Trainer, TrainingParams
from wardround.updates import Layout

__all__ = ["Setup", "Setups", "count_parameters"]


@dataclass(frozen=True, eq=False)
class Setup:
    """What the work of an order needs."""

    key: str
    evaluator: Evaluator
    work: LocalWork

    def weights(self, order: Note) -> Tensor:
        """The global weights of an order."""
        return self._vector(order, "weights")

    def control(self, order: Note) -> Tensor | None:
        """The server's control variate of an order; None where the work has none."""
        return self._vector(order, CONTROL) if self.work.training.method == "scaffold" else None

    def _vector(self, order: Note, name: str) -> Tensor:
        size, vector = self.work.layout.size, order.arrays.get(name)
        if vector is None or vector.shape != (size,):
            raise WardroundError(
                f"the {name} do not fit the model on this hospital's data: "
                f"{None if vector is None else vector.shape} instead of {(size,)}"
            )
        return torch.from_numpy(vector.copy())


class Setups:
    """Builds setups for one client's data and keeps the last one."""

    def __init__(self, client: Client, engine: str, device: str, policy: HospitalPolicy | None) -> None:
        """`policy` of a real hospital, whose noise then comes from the operating system; None in a simulation."""
        self.client, self.engine, self.device, self.policy = client, engine, device, policy
        self.last: Setup | None = None

    def prepare(self, order: Note) -> Setup:
        """The setup for an order's work; built where the work is new."""
        head, key, dataset = order.head, work_key(order.head), self.client.dataset
        if self.last is None or key != self.last.key or self.last.evaluator.dataset is not dataset:
            real = self.policy is not None
            if self.policy is not None:
                self.policy.check_parameters(count_parameters(dataset, head["model"]))
            model, trainer, training = _build(dataset, key, self.engine, self.device, real)
            layout, rounds, seed = Layout.of(model), int(head["rounds"]), int(head["seed"])
            # What the server could repeat would protect nobody from it: noise needs randomness of the system.
            work = LocalWork(trainer, training, layout, rounds, seed, system_noise=real)
            self.last = Setup(key, Evaluator(model, dataset), work)
        return self.last

    def release(self) -> None:
        """Forget the network, its trainer and their buffers, which hold several copies of the weights."""
        self.last = None
        _build.cache_clear()


def count_parameters(dataset: Dataset, section: Mapping[str, Any]) -> int:
    """The size of a model before it has any memory: a server may name one that would not fit."""
    params = dict(section)
    outputs = dataset.outputs
    spec = models.create(params.pop("name"), **params)
    try:
        with torch.device("meta"):
            network = spec.build(tuple(dataset.input_shape), outputs)
    except WardroundError:
        raise
    except Exception:  # a plug-in's model that has to be on a real device: the hospital installed it
        return 0
    return sum(parameter.numel() for parameter in network.parameters())


@lru_cache(maxsize=4)
def _build(
    dataset: Dataset, key: str, engine: str, device: str, system_noise: bool
) -> tuple[nn.Module, Trainer, TrainingParams]:
    """The network and its trainer, shared by all hospitals of a process that have the same data and work."""
    head = json.loads(key)
    training, dp = TrainingParams(**head["training"]), dp_of(head)
    classes = len(dataset.class_names)
    model = build_model(head["model"], dataset.input_shape, dataset.task.value, classes, head["seed"], dp)
    trainer = build_trainer(
        model, dataset, training, dp, engine, device, workers=1, system_noise=system_noise
    )
    return model, trainer, training
