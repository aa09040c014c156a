"""What local training takes and gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from wardround.registry import Parameters
from wardround.survival import cox_loss, ranked_times
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
    "bias_reach",
    "empty_matrix",
    "has_batch_norm",
    "has_convolutions",
    "learning_rate",
    "local_steps",
]


Precision = Literal["float32", "bf16"]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's constants: the defaults of Kingma and Ba (2015), as everywhere."""


class TrainingParams(Parameters):
    """How a client trains in a round."""

    method: Literal["plain", "scaffold"] = "plain"
    """`scaffold`: every step is corrected by control variates, which takes out the drift of clients whose data differ
    (see `wardround.federation.control_variates`)."""
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(0.001, gt=0)
    batch_size: int = Field(32, ge=1)
    epochs: int = Field(1, ge=1)
    steps: int | None = Field(None, ge=1)
    """Batches per round instead of epochs: a client with fewer begins another epoch. 1 is FedSGD."""
    client_momentum: float = Field(0.0, ge=0, lt=1)
    """β: clients send the running average βm + (1−β)g of their updates g, kept from round to round."""
    client_momentum_start: Literal["first", "zero"] = "first"
    """The average before the first round: the first update itself (as in the paper), or zero (as in most programs)."""
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
    strata: Literal["auto", "none", "outcome"] = "auto"
    """Split updates by outcome? `auto`: where the rule asks for it and it can be done; `outcome`: or refuse the run;
    `none`: never."""
    precision: Literal["float32", "bf16", "auto"] = "float32"
    """What convolutional networks compute in; weights, gradients and the optimiser stay in float32. `auto`: bf16
    where the processor or GPU has it. The record says which one it was."""

    @model_validator(mode="before")
    @classmethod
    def _control_variates_are_scaffold(cls, values: Any) -> Any:
        """`control_variates: true` is another way to write `method: scaffold`."""
        if not isinstance(values, dict) or "control_variates" not in values:
            return values
        rest = {key: value for key, value in values.items() if key != "control_variates"}
        wanted = values["control_variates"]
        if not isinstance(wanted, bool):
            raise ValueError(f"control_variates: true or false, got {wanted!r}")
        method = "scaffold" if wanted else "plain"
        if rest.setdefault("method", method) != method:
            raise ValueError(f"control_variates: {str(wanted).lower()} contradicts method: {rest['method']}")
        return rest

    @model_validator(mode="after")
    def _scaffold_is_defined(self) -> TrainingParams:
        if self.method != "scaffold":
            return self
        if self.optimizer != "sgd" or self.momentum:
            raise ValueError(
                "method scaffold needs optimizer sgd without momentum: only then is (start − end) / (steps · lr) the "
                "mean gradient that a control variate stands for"
            )
        if self.client_momentum:
            raise ValueError(
                "method scaffold and client_momentum exclude each other: the server reads the control variates out of "
                "the updates, and an average with the past is none"
            )
        return self


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


def bias_reach(
    params: TrainingParams, counts: Tensor, samples: Tensor, lr: float, batch_norm: bool = False
) -> Tensor:
    """How far training on the samples of an outcome can move the bias of their logit at most (N × C).

    The derivative of the loss there is at most 1 for a sample, so a step of SGD is at most lr times the outcome's share
    of the batch, and with momentum lr / (1 − momentum) in the long run. Every sample is in one batch of an epoch. The
    last batch may be small, and its samples count for more: at most, all of them are of this outcome. A tenth more is
    allowed for what belongs to no sample. A step of Adam is at most lr · (1 − β₁) / √(1 − β₂), 3.2 lr, whatever the
    share (Kingma and Ba, 2015, section 2.1).

    Args:
        params: How clients train.
        counts: N × C samples of each outcome; NaN where a client does not tell.
        samples: N: all of a client's samples.
        lr: The learning rate of the round.
        batch_norm: No batch of a single sample.

    >>> sgd = TrainingParams(optimizer="sgd", batch_size=10, epochs=2)
    >>> bias_reach(sgd, torch.tensor([[5.0, 20.0]]), torch.tensor([25.0]), lr=0.5)
    tensor([[1.1000, 2.7500]], dtype=torch.float64)
    """
    known = samples.double().nan_to_num(0.0).clamp(0, 2**53)
    steps = torch.tensor([local_steps(params, int(count), batch_norm) for count in known.tolist()]).double()
    if params.optimizer == "adam":
        return (1.1 * (1 - BETA1) / math.sqrt(1 - BETA2) * lr * steps)[:, None].expand_as(counts)
    size = params.batch_size
    per_epoch = steps / params.epochs
    if params.steps is not None:
        per_epoch = (known / size).ceil().clamp_min(1)
    own = counts.double().nan_to_num(0.0)
    last = (known - (per_epoch - 1) * size)[:, None].clamp(1, size)
    shares = own.minimum(last) / last + (own - last).clamp_min(0) / size
    epochs = (steps / per_epoch).floor()[:, None]
    begun = (steps[:, None] - epochs * per_epoch[:, None]).minimum(own / size)
    return 1.1 * lr / (1 - params.momentum) * (epochs * shares + begun)


def local_steps(params: TrainingParams, samples: int, batch_norm: bool = False) -> int:
    """The steps that a client with so many samples makes in a round; `batch_norm`: no batch of a single one.

    >>> local_steps(TrainingParams(batch_size=4, epochs=2), 9), local_steps(TrainingParams(steps=100), 9)
    (6, 100)
    """
    if params.steps is not None:
        return params.steps
    smallest = 2 if batch_norm and samples > 1 else 1
    full, rest = divmod(samples, params.batch_size)
    batches_per_epoch = (full if params.batch_size >= smallest else 0) + (rest >= smallest)
    return max(1, batches_per_epoch * params.epochs)


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

    @cached_property
    def size(self) -> int:
        """Its samples, kept: every round asks many times, and torch takes a while to answer."""
        return len(self.rows)

    def __len__(self) -> int:
        return self.size


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
    correction: Tensor | None = None
    """What is added to the gradient of every step (D), in the order of the weights. Values of what is not trained
    (running statistics) have no effect."""
    stealth: float = 0.0
    """λ: share of the client's loss that is the distance of its weights from where it started,
    (1−λ)·L + λ‖w − w_start‖, for attackers that want to stay near (constrain-and-scale)."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What came out of a round's local training."""

    matrix: Tensor
    """N × D: each client's weights minus where it started."""
    loss: Tensor
    """N: each client's mean training loss over its samples and epochs."""
    parts: Tensor | None = None
    """N × C × D: what the samples of each outcome contributed; they add up to `matrix`. None where not asked for."""


class Trainer(Protocol):
    """An engine. Engines inherit from this class, and so have a `close` that does nothing."""

    engine: ClassVar[str]
    """Its name in the record."""
    precision: Precision = "float32"
    """What it computes in."""
    workers: int = 1
    """Clients that it trains side by side, each on a core of its own."""

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        """Train every client from the global weights (or its own start).

        Args:
            global_weights: D values.
            tasks: One per client.
            lr: The learning rate of the round.
            prox_mu: Strength of the proximal term.
            outcomes: Split updates into the parts of so many outcomes (targets 0, 1, …); None: do not.
        """
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
    survival: bool = False
    """The partial likelihood of Cox, of signed times; the patients of a batch are compared with each other."""

    def target_table(self, targets: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        """samples × outputs zeros and ones, or signed ranks of times, as the dense engines compare them with logits."""
        if self.survival:  # whole numbers are exact in any precision
            return ranked_times(targets).to(dtype).view(-1, 1)
        if self.multi_class:
            return functional.one_hot(targets.long(), outputs).to(dtype)
        return targets.to(dtype).view(-1, outputs)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample of a batch (n), of a task with one target per sample."""
        if self.multi_class:
            return functional.cross_entropy(logits, targets, reduction="none")
        targets = targets.to(logits.dtype).view_as(logits)
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").flatten()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of a batch."""
        if self.survival:
            return cox_loss(logits.reshape(-1), targets)
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
