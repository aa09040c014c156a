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
from wardround.datasets.partition import Assignment
from wardround.datasets.targets import classes_of
from wardround.faults import BrokenClients
from wardround.federation.control_variates import new_control
from wardround.privacy.dp import clip_and_noise
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.noise import clip_and_add_system_noise
from wardround.privacy.params import DpParams
from wardround.randomness import seed_for
from wardround.training.base import (
    ClientData,
    ClientTask,
    Trainer,
    TrainingParams,
    learning_rate,
    local_steps,
)
from wardround.updates import Layout, Parts

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
        broken: BrokenClients | None = None,
    ) -> None:
        """Build a client from what it has.

        `campaign` says whether this client attacks, `broken` (None: nobody is) whether it has a fault; without `dp` and
        `sealer` its updates leave it unprotected.
        """
        self.name, self.dataset, self.data, self.test_rows = name, dataset, data, test_rows
        self.campaign, self.dp, self.sealer = campaign, dp, sealer
        self.batch_norm: Tensor | None = None
        """The BatchNorm coordinates that stay with this client, once it has trained with such a policy."""
        self.momentum: Tensor | None = None
        """The running average of this client's updates (D), where it sends that instead of them."""
        self.control: Tensor | None = None
        """SCAFFOLD's control variate of this client (D), once it has trained with one."""
        self.least_part = 1
        """Patients of an outcome below which nothing leaves the client about that outcome alone: a hospital has a
        floor, a simulation has nothing to hide."""
        self.broken = broken or BrokenClients.none()
        self._poisoned: ClientData | None = None
        self._spoilt: ClientData | None = None

    def hold(self, dataset: Dataset, data: ClientData, test_rows: np.ndarray) -> None:
        """Take other samples: the same patients in other columns or scales, or a table that was fixed."""
        self.dataset, self.data, self.test_rows = dataset, data, test_rows
        self._poisoned = self._spoilt = None

    def task(
        self,
        work: LocalWork,
        weights: Tensor,
        round: int,
        policy: ClientPolicy,
        control: Tensor | None = None,
    ) -> ClientTask:
        """What this client has to train in a round; `control` is the server's control variate (SCAFFOLD)."""
        drift = self.dataset.drift
        return ClientTask(
            self.name,
            self.training_data(round),
            seed_for(work.seed, "train", round, self.name),
            self.own_weights(weights, work.layout) if policy.local_batch_norm else None,
            None if drift is None else partial(drift, client=self.name, round=round),
            control if control is None or self.control is None else control - self.control,
            self.campaign.stealth(self.name, round),
        )

    def training_data(self, round: int) -> ClientData:
        """The client's samples; its poisoned copy, made once, while it attacks through its data."""
        campaign = self.campaign
        attacks_data = campaign.attack.poisons_data and self.name in campaign.byzantine
        if not (attacks_data and campaign.active(round)):
            return self._honest_data(round)
        if self._poisoned is None:
            own = self._local_data()
            poisoned = campaign.poison(self.name, own, round)
            self._poisoned = self.data if poisoned is own else _stored(poisoned)
        return self._poisoned

    def _local_data(self) -> LocalData:
        """The client's samples as attacks and faults see them."""
        multi_label = self.dataset.task is Task.MULTILABEL
        classes = len(self.dataset.class_names)
        return LocalData(self.data.inputs[self.data.rows], self.data.targets, classes, multi_label)

    def held(self, round: int) -> ClientData:
        """The samples that an honest client has in a round: spoilt ones, made once, while a fault spoils them."""
        if not self.broken.fault.spoils_data or self.name not in self.broken.failing(round):
            return self.data
        if self._spoilt is None:
            self._spoilt = _stored(self.broken.spoil(self.name, self._local_data()))
        return self._spoilt

    def _honest_data(self, round: int) -> ClientData:
        """The client's samples of this round, where its class mix moves."""
        data = self.held(round)
        if self.dataset.resample is None:
            return data
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

    def average_with_past(self, row: Tensor, beta: float, from_zero: bool = False) -> Tensor:
        """The running average βm + (1−β)g of the client's updates g, of which this is the latest."""
        past = torch.zeros_like(row) if self.momentum is None and from_zero else self.momentum
        average = row.clone() if past is None else past.mul(beta).add_(row, alpha=1 - beta)
        self.momentum = average
        return average

    def merge_small_parts(self, parts: Parts, row: int) -> None:
        """Let no part that leaves the client be that of a few patients: such ones join the largest part.

        The client does not say how many patients of those outcomes it has (NaN).
        """
        rows, counts = parts.rows[row], parts.counts[row]
        largest = int(counts.argmax())
        small = (counts < self.least_part) & (torch.arange(len(counts)) != largest)
        rows[largest] += rows[small].sum(0)  # what rounding left to outcomes without a patient, too
        rows[small] = 0
        counts[small & (counts > 0)] = torch.nan

    def add_noise(self, row: Tensor, work: LocalWork, round: int) -> Tensor:
        """The update as it leaves the client: clipped and with noise, where the client is the unit of privacy."""
        if self.dp is None or self.dp.unit != "client":
            return row
        if work.system_noise:
            return clip_and_add_system_noise(row, self.dp.clip, self.dp.multiplier)
        return clip_and_noise(row, self.dp.clip, self.dp.multiplier, work.seed, round, self.name)


def _stored(data: LocalData) -> ClientData:
    return ClientData(data.inputs, torch.arange(len(data.targets)), data.targets)


def train_together(
    clients: Sequence[Client],
    work: LocalWork,
    weights: Tensor,
    round: int,
    policy: ClientPolicy,
    control: Tensor | None = None,
) -> tuple[Tensor, Tensor, Parts | None]:
    """Local training of some clients from the global weights, and their own noise.

    `control` is the server's control variate (D), where they train with SCAFFOLD; each client's own moves on.

    Returns:
        N × D updates as they leave honest clients (before encryption), N training losses, and the updates split by
        outcome where the policy asks for it. Updates that are split are those without SCAFFOLD's correction, which the
        server can add itself (`wardround.federation.control_variates.ClientControls`).
    """
    tasks = [client.task(work, weights, round, policy, control) for client in clients]
    prox_mu = work.training.prox_mu if policy.prox_mu is None else policy.prox_mu
    lr = learning_rate(work.training, round, work.rounds)
    outcomes = len(clients[0].dataset.class_names) if policy.by_outcome else None
    trained = work.trainer.train(weights, tasks, lr, prox_mu, outcomes)
    matrix = trained.matrix
    batch_norm = bool(work.layout.batch_norm_mask.any())
    steps = [local_steps(work.training, len(task.data), batch_norm) for task in tasks]
    parts = None
    if trained.parts is not None and outcomes is not None:
        counts = torch.stack(
            [torch.bincount(task.data.targets, minlength=outcomes) for task in tasks]
        ).double()
        parts = Parts(trained.parts, counts)
        for row, (client, task) in enumerate(zip(clients, tasks, strict=True)):
            if (
                task.correction is not None
            ):  # the part of the last outcome is what the others leave of the update
                parts.rows[row, -1].add_(task.correction, alpha=steps[row] * lr)
            client.merge_small_parts(parts, row)
    if policy.local_batch_norm:
        for client, task, row in zip(clients, tasks, matrix, strict=True):
            assert task.weights is not None
            client.keep_batch_norm(task.weights, row, work.layout)
        if parts is not None:
            parts.rows[:, :, work.layout.batch_norm_mask] = 0
    if control is not None:
        for client, row, made in zip(clients, matrix, steps, strict=True):
            client.control = new_control(client.control, control, row, made, lr)
        if parts is not None:
            matrix = parts.sums()
    if beta := work.training.client_momentum:
        from_zero = work.training.client_momentum_start == "zero"
        matrix = torch.stack(
            [
                client.average_with_past(row, beta, from_zero)
                for client, row in zip(clients, matrix, strict=True)
            ]
        )
    if any(client.dp is not None for client in clients):
        matrix = torch.stack(
            [client.add_noise(row, work, round) for client, row in zip(clients, matrix, strict=True)]
        )
    return matrix, trained.loss, parts
