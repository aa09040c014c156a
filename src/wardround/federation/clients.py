"""What the loop needs of its clients, wherever they are: in this process, or in hospitals behind a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from wardround.aggregators.base import ClientPolicy
from wardround.privacy.masking import MaskedSum
from wardround.privacy.order_names import order_name
from wardround.records import EvaluationDetails, Metrics
from wardround.updates import Aggregation, Updates

__all__ = ["Clients", "Description", "Evaluation", "FinishedModel", "Received", "TooFewReplies", "TrainOrder"]


class TooFewReplies(Exception):
    """This attempt at a round has too few usable updates; the round may be tried again."""


@dataclass(frozen=True)
class Description:
    """Who takes part, and what their data look like."""

    task: str
    class_names: tuple[str, ...]
    clients: Mapping[str, Sequence[int]]
    """Client → training samples per class (positives per finding of a multi-label task)."""


@dataclass(frozen=True, eq=False)
class TrainOrder:
    """What the server asks of the chosen clients in one round."""

    round: int
    chosen: Mapping[str, int]
    """Client → its number of samples."""
    weights: Tensor
    """The global model."""
    previous_weights: Tensor | None
    """The global model before the last step: attackers in a simulation may know it."""
    policy: ClientPolicy
    minimum_updates: Callable[[int], int]
    """Number of clients that replied → usable updates that the round needs."""
    encrypted: bool = False
    """Are updates to be encrypted?"""
    try_rule: Callable[[Updates], Aggregation] | None = None
    """What a copy of the server's rule would make of these updates: for attackers that know the defence."""
    weigh: Callable[[Updates], Aggregation] | None = None
    """What the rule makes of reports alone. Where there is this, updates are to be masked: clients apply the weights
    themselves, and only the weighted sum can be read."""
    control: Tensor | None = None
    """The server's control variate, where clients train with SCAFFOLD."""

    @property
    def hash(self) -> str:
        """Names what is asked: the round, the model and how to train."""
        policy: list[object] = [self.policy.prox_mu, self.policy.local_batch_norm]
        if self.policy.by_outcome:
            policy.append("by-outcome")
        head = json.dumps({"round": self.round, "policy": policy}).encode()
        control = b"" if self.control is None else self.control.numpy().tobytes()
        return order_name(head + control, self.weights.numpy().tobytes())


@dataclass(frozen=True, eq=False)
class Received:
    """What came back of a training order."""

    updates: Updates
    """One row per client that replied. Encrypted or masked updates have rows without content: only who, and what is
    reported."""
    sealed: Mapping[str, bytes] | None = None
    """Client → its encrypted update; None where updates are in the clear."""
    order: str = ""
    """The hash of the order that clients answered: encrypted updates are bound to it."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Client → why what it sent is of no use."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Client → why it did not reply."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock time of the clients' phases."""
    summed: MaskedSum | None = None
    """The weighted sum of masked updates; None where updates are not masked."""


@dataclass(frozen=True)
class Evaluation:
    """How good the model is by the clients' own samples."""

    metrics: Metrics | None = None
    """On test samples, all clients together."""
    validation: Metrics | None = None
    per_client: Mapping[str, Metrics] | None = None
    details: EvaluationDetails = field(default_factory=EvaluationDetails)
    """Why figures are null, thresholds, calibration and patient groups."""


@dataclass(frozen=True, eq=False)
class FinishedModel:
    """A run's model as it goes home: the files of an exported model's folder."""

    round: int
    """The round after which the weights were like this."""
    files: Mapping[str, bytes]
    """File name → content."""


class Clients(Protocol):
    """The clients of a run as the loop sees them."""

    def describe(self) -> Description:
        """Who takes part, and what their data look like."""
        ...

    def choose(self, round: int, quarantined: Mapping[str, str]) -> Mapping[str, int]:
        """The clients that are asked this round and their sample counts; nobody in quarantine."""
        ...

    def samples(self, client: str) -> int | None:
        """How many samples a client has said it has; None for one that never took part."""
        ...

    def train(self, order: TrainOrder) -> Received:
        """Have the chosen clients train, protect and send their updates.

        Raises TooFewReplies where the round has too few usable updates and may be tried again.
        """
        ...

    def wait_for_retry(self, round: int, attempt: int, reason: str) -> None:
        """Wait before the round is tried again, or raise an error that ends the run for now."""
        ...

    def evaluate(self, round: int, weights: Tensor) -> Evaluation:
        """Measure the model on the clients' own samples."""
        ...

    def usable_weights(self, weights: Tensor) -> Tensor | None:
        """The model as others can use it, where BatchNorm stays with the clients: with the mean of theirs.

        None where nobody but the clients knows their BatchNorm.
        """
        ...

    def deliver(self, model: FinishedModel, to: Sequence[str]) -> Mapping[str, str]:
        """Hand the finished model to these clients; returns who has not got it, and why."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that later rounds depend on, as plain tensors, numbers and strings."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the round whose state this is."""
        ...
