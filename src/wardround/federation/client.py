"""One hospital: its data, its local training, its noise and its sealing.

A simulation has many clients and trains them together; a hospital of a federation has one. What a client does is
the same in both, because it is written down here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from wardround.aggregators.base import ClientPolicy
from wardround.attacks.base import LocalData
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset, Task
from wardround.datasets.partition import Assignment, classes_of
from wardround.privacy.dp import clip_and_noise
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.noise import clip_and_add_system_noise
from wardround.privacy.params import DpParams
from wardround.randomness import seed_for
from wardround.training.base import ClientData, ClientTask, Trainer, TrainingParams, learning_rate
from wardround.updates import Layout

__all__ = ["Client", "LocalWork", "client_data", "train_together"]


@dataclass(frozen=True, eq=False)
class LocalWork:
    """How clients train in a run: what does not change from round to round."""

    trainer: Trainer
    training: TrainingParams
    layout: Layout
    rounds: int
    seed: int
    """Decides batch order, dropout and augmentation, and in a simulation noise, together with round and client."""
    system_noise: bool = False
    """Draw the noise of differential privacy from the operating system, as every deployment must."""


def client_data(dataset: Dataset, assignment: Assignment) -> dict[str, ClientData]:
    """Each client's share of the training split."""
    return {
        client: ClientData(dataset.train.inputs, torch.from_numpy(rows), dataset.train.targets[rows])
        for client, rows in zip(assignment.clients, assignment.train, strict=True)
    }


class Client:
    """One participant of a run and what it keeps to itself."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        data: ClientData,
        test_rows: np.ndarray,
        campaign: Campaign,
        dp: DpParams | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        """`campaign` says whether this client attacks; without `dp` and `sealer` its updates leave it unprotected."""
        self.name, self.dataset, self.data, self.test_rows = name, dataset, data, test_rows
        self.campaign, self.dp, self.sealer = campaign, dp, sealer
        self.batch_norm: Tensor | None = None
        """The BatchNorm coordinates that stay with this client, once it has trained with such a policy."""
        self.momentum: Tensor | None = None
        """The running average of this client's updates (D), where it sends that instead of them."""
        self._poisoned: ClientData | None = None

    def hold(self, dataset: Dataset, data: ClientData, test_rows: np.ndarray) -> None:
        """Take other samples: the same patients in other columns or scales, or a table that was fixed."""
        self.dataset, self.data, self.test_rows = dataset, data, test_rows
        self._poisoned = None

    def task(self, work: LocalWork, weights: Tensor, round: int, policy: ClientPolicy) -> ClientTask:
        """What this client has to train in a round."""
        drift = self.dataset.drift
        return ClientTask(
            self.name,
            self.training_data(round),
            seed_for(work.seed, "train", round, self.name),
            self.own_weights(weights, work.layout) if policy.local_batch_norm else None,
            None if drift is None else partial(drift, client=self.name, round=round),
        )

    def training_data(self, round: int) -> ClientData:
        """The client's samples; its poisoned copy, made once, while it attacks through its data."""
        campaign = self.campaign
        attacks_data = campaign.attack.poisons_data and self.name in campaign.byzantine
        if not (attacks_data and campaign.active(round)):
            return self._honest_data(round)
        if self._poisoned is None:
            clean, classes = self.data, len(self.dataset.class_names)
            multi_label = self.dataset.task is Task.MULTILABEL
            own = LocalData(clean.inputs[clean.rows], clean.targets, classes, multi_label)
            poisoned = campaign.poison(self.name, own, round)
            rows = torch.arange(len(poisoned.targets))
            unchanged = poisoned is own
            self._poisoned = clean if unchanged else ClientData(poisoned.inputs, rows, poisoned.targets)
        return self._poisoned

    def _honest_data(self, round: int) -> ClientData:
        """The client's samples of this round, where its class mix moves."""
        if self.dataset.resample is None:
            return self.data
        data = self.data
        index = self.dataset.resample(classes_of(data.targets.numpy()), self.name, round)
        if index is None:
            return data
        chosen = torch.from_numpy(index)
        return ClientData(data.inputs, data.rows[chosen], data.targets[chosen])

    def own_weights(self, weights: Tensor, layout: Layout) -> Tensor:
        """The global weights with this client's own BatchNorm (the initial one before its first round)."""
        own = weights.clone()
        if self.batch_norm is not None:
            own[layout.batch_norm_mask] = self.batch_norm
        return own

    def keep_batch_norm(self, start: Tensor, row: Tensor, layout: Layout) -> None:
        """Store what the client learnt of BatchNorm and take it out of the row that is sent."""
        mask = layout.batch_norm_mask
        self.batch_norm = (start + row)[mask]
        row[mask] = 0

    def average_with_past(self, row: Tensor, beta: float) -> Tensor:
        """The running average βm + (1−β)g of the client's updates g, of which this is the latest."""
        past = self.momentum
        average = row.clone() if past is None else past.mul(beta).add_(row, alpha=1 - beta)
        self.momentum = average
        return average

    def add_noise(self, row: Tensor, work: LocalWork, round: int) -> Tensor:
        """The update as it leaves the client: clipped and with noise, where the client is the unit of privacy."""
        if self.dp is None or self.dp.unit != "client":
            return row
        if work.system_noise:
            return clip_and_add_system_noise(row, self.dp.clip, self.dp.multiplier)
        return clip_and_noise(row, self.dp.clip, self.dp.multiplier, work.seed, round, self.name)


def train_together(
    clients: Sequence[Client], work: LocalWork, weights: Tensor, round: int, policy: ClientPolicy
) -> tuple[Tensor, Tensor]:
    """Local training of some clients from the global weights, and their own noise.

    Returns:
        N × D updates as they leave honest clients (before encryption), and N training losses.
    """
    tasks = [client.task(work, weights, round, policy) for client in clients]
    prox_mu = work.training.prox_mu if policy.prox_mu is None else policy.prox_mu
    lr = learning_rate(work.training, round, work.rounds)
    trained = work.trainer.train(weights, tasks, lr, prox_mu)
    matrix = trained.matrix
    if policy.local_batch_norm:
        for client, task, row in zip(clients, tasks, matrix, strict=True):
            assert task.weights is not None
            client.keep_batch_norm(task.weights, row, work.layout)
    if beta := work.training.client_momentum:
        matrix = torch.stack(
            [client.average_with_past(row, beta) for client, row in zip(clients, matrix, strict=True)]
        )
    if any(client.dp is not None for client in clients):
        matrix = torch.stack(
            [client.add_noise(row, work, round) for client, row in zip(clients, matrix, strict=True)]
        )
    return matrix, trained.loss
