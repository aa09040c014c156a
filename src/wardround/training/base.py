"""What local training takes and gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from wardround.registry import Parameters
from wardround.training.sample_order import shuffled

__all__ = [
    "ClientData",
    "ClientTask",
    "Objective",
    "Precision",
    "Trained",
    "Trainer",
    "TrainingParams",
    "batches",
    "empty_matrix",
    "has_batch_norm",
    "has_convolutions",
    "learning_rate",
]


Precision = Literal["float32", "bf16"]


class TrainingParams(Parameters):
    """How a client trains in a round."""

    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(0.001, gt=0)
    batch_size: int = Field(32, ge=1)
    epochs: int = Field(1, ge=1)
    steps: int | None = Field(None, ge=1)
    """Batches per round instead of epochs: a client with fewer begins another epoch. 1 is FedSGD."""
    client_momentum: float = Field(0.0, ge=0, lt=1)
    """β: clients send the running average βm + (1−β)g of their updates g, kept from round to round."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Of `sgd`."""
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["none", "cosine", "step"] = "none"
    """How the learning rate falls over the rounds of the run."""
    step_every: int = Field(30, ge=1)
    """`step`: rounds between two steps."""
    step_factor: float = Field(0.1, gt=0, le=1)
    """`step`: what the learning rate is multiplied by."""
    prox_mu: float = Field(0.0, ge=0)
    """Strength of FedProx's term (μ/2)‖w − w^t‖² in the local loss."""
    precision: Literal["float32", "bf16", "auto"] = "float32"
    """What convolutional networks compute in; weights, gradients and the optimiser stay in float32. `auto`: bf16
    where the processor or GPU has it. The record says which one it was."""


def learning_rate(params: TrainingParams, round: int, rounds: int) -> float:
    """The learning rate of a round (counted from 1).

    >>> [round(learning_rate(TrainingParams(lr=1.0, schedule="cosine"), t, 4), 3) for t in (1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    if params.schedule == "cosine":
        return params.lr * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
    if params.schedule == "step":
        return params.lr * params.step_factor ** ((round - 1) // params.step_every)
    return params.lr


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's samples: rows of a stored split, with targets of its own (they may be poisoned)."""

    inputs: Tensor
    """The stored samples of the whole split, shared by all clients."""
    rows: Tensor
    """Which of them are this client's."""
    targets: Tensor
    """One per row of this client."""

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.targets):
            raise ValueError(
                f"a client's {len(self.rows)} rows need as many targets, got {len(self.targets)}"
            )
        if not len(self.rows):
            raise ValueError("a client without samples cannot train")

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class ClientTask:
    """One client's work in a round."""

    client: str
    data: ClientData
    seed: int
    """Decides batch order, dropout and augmentation of this client in this round."""
    weights: Tensor | None = None
    """Where this client starts, if not at the global weights (local BatchNorm)."""
    transform: Callable[[Tensor], Tensor] | None = None
    """Changes a batch of model input in this round, before augmentation (drift of this client's case mix).

    It treats every sample by itself, so that an engine may apply it to a batch or to all samples at once;
    a plain function or `functools.partial` of one, so that it can travel to a worker process.
    """


@dataclass(frozen=True, eq=False)
class Trained:
    """What came out of a round's local training."""

    matrix: Tensor
    """N × D: each client's weights minus where it started."""
    loss: Tensor
    """N: each client's mean training loss over its samples and epochs."""


class Trainer(Protocol):
    """An engine. Engines inherit from this class, and so have a `close` that does nothing."""

    engine: ClassVar[str]
    """Its name in the record."""
    precision: Precision = "float32"
    """What it computes in."""
    workers: int = 1
    """Clients that it trains side by side, each on a core of its own."""

    def train(
        self, global_weights: Tensor, tasks: Sequence[ClientTask], lr: float, prox_mu: float
    ) -> Trained:
        """Train every client from the global weights (or its own start)."""
        ...

    def close(self) -> None:
        """Give back what the engine holds (worker processes); it can still train afterwards."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


@dataclass(frozen=True)
class Objective:
    """What the network is trained for: how stored samples become input, and the loss."""

    multi_class: bool
    """Softmax over classes; else a sigmoid for each output (binary and multi-label tasks)."""
    prepare: Callable[[Tensor], Tensor]
    """Stored batch → model input."""
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    """Random change of a batch of model input, in training only."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch."""
        if self.multi_class:
            return functional.cross_entropy(logits, targets)
        targets = targets.to(logits.dtype).view_as(logits)
        return functional.binary_cross_entropy_with_logits(logits, targets)


def batches(
    task: ClientTask, batch_size: int, epochs: int, smallest: int = 1, steps: int | None = None
) -> Iterator[Tensor]:
    """Indices into the client's samples, batch by batch, epoch by epoch, in an order of the task's seed.

    A last batch below `smallest` is left out (BatchNorm cannot train on a single sample), unless it is all
    the client has. With `steps` there are so many batches, whatever number of epochs that takes.
    """
    every = _batches(task, batch_size, epochs if steps is None else None, smallest)
    return every if steps is None else itertools.islice(every, steps)


def _batches(task: ClientTask, batch_size: int, epochs: int | None, smallest: int) -> Iterator[Tensor]:
    n = len(task.data)
    for epoch in itertools.count() if epochs is None else range(epochs):
        for batch in torch.from_numpy(shuffled(task.seed, epoch, n)).split(batch_size):
            if len(batch) >= smallest or n < smallest:
                yield batch


def has_convolutions(module: nn.Module) -> bool:
    """Does the network have convolutions, in any number of dimensions?"""
    return any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in module.modules())


def has_batch_norm(module: nn.Module) -> bool:
    """Does the network normalise over the batch?"""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def empty_matrix(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A matrix for results, not yet filled.

    On the CPU numpy makes it: it asks the system for large pages. Small ones have to be cleared one by one,
    which for thousands of clients takes a third as long as their training.

    >>> empty_matrix(2, 3, torch.float32, torch.device("cpu")).shape
    torch.Size([2, 3])
    """
    if device.type != "cpu":
        return torch.empty(rows, columns, dtype=dtype, device=device)
    return torch.from_numpy(np.empty((rows, columns), dtype=str(dtype).removeprefix("torch.")))
