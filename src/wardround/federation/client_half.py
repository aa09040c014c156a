"""The clients' half of a round: local training from the global weights, on clean or poisoned data.

All clients of a simulation, or the one that lives in a hospital: what is computed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from wardround.aggregators.base import ClientPolicy
from wardround.attacks.base import LocalData
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset, Task
from wardround.randomness import seed_for
from wardround.training.base import ClientData, ClientTask, Objective, Trainer, TrainingParams, learning_rate
from wardround.updates import Layout

__all__ = ["ClientHalf", "objective_of"]


def objective_of(dataset: Dataset) -> Objective:
    """What a network is trained for on this dataset."""
    return Objective(dataset.task is Task.MULTICLASS, dataset.prepare, dataset.augment)


class ClientHalf:
    """What clients hold: their data, their BatchNorm where it stays local, and whatever attack they play."""

    weights: Tensor
    """The global weights of the round."""
    layout: Layout

    def __init__(
        self,
        dataset: Dataset,
        data: Mapping[str, ClientData],
        campaign: Campaign,
        trainer: Trainer,
        training: TrainingParams,
        rounds: int,
        seed: int,
    ) -> None:
        self.local_data, self.data = dataset, dict(data)
        self.campaign, self.trainer, self.training = campaign, trainer, training
        self.rounds, self.seed = rounds, seed
        self.local_batch_norm: dict[str, Tensor] = {}
        self.poisoned: dict[str, ClientData] = {}

    def train_clients(
        self,
        chosen: Sequence[str],
        round: int,
        policy: ClientPolicy,
        besides: Sequence[ClientTask] = (),
    ) -> tuple[Tensor, Tensor]:
        """Updates and losses of the clients chosen, and of other tasks in rows behind theirs."""
        tasks = [
            ClientTask(
                client,
                self._data_of(client, round),
                seed_for(self.seed, "train", round, client),
                self._start_of(client) if policy.local_batch_norm else None,
                None
                if self.local_data.drift is None
                else partial(self.local_data.drift, client=client, round=round),
            )
            for client in chosen
        ]
        lr = learning_rate(self.training, round, self.rounds)
        prox_mu = self.training.prox_mu if policy.prox_mu is None else policy.prox_mu
        trained = self.trainer.train(self.weights, [*tasks, *besides], lr, prox_mu)
        if policy.local_batch_norm:
            self._keep_batch_norm_home(tasks, trained.matrix[: len(tasks)])
        return trained.matrix, trained.loss

    def _data_of(self, client: str, round: int) -> ClientData:
        """The client's samples; its poisoned copy, made once, while a data attack is on."""
        campaign, clean = self.campaign, self.data[client]
        if not (campaign.attack.poisons_data and client in campaign.byzantine and campaign.active(round)):
            return clean
        if client not in self.poisoned:
            dataset = self.local_data
            own = LocalData(
                clean.inputs[clean.rows],
                clean.targets,
                len(dataset.class_names),
                dataset.task is Task.MULTILABEL,
            )
            lie = campaign.poison(client, own, round)
            rows = torch.arange(len(lie.targets))
            self.poisoned[client] = clean if lie is own else ClientData(lie.inputs, rows, lie.targets)
        return self.poisoned[client]

    def _start_of(self, client: str) -> Tensor:
        """The global weights with the client's own BatchNorm (the initial one for a client not seen yet)."""
        start, mask = self.weights.clone(), self.layout.batch_norm_mask
        if client in self.local_batch_norm:
            start[mask] = self.local_batch_norm[client]
        return start

    def _keep_batch_norm_home(self, tasks: Sequence[ClientTask], matrix: Tensor) -> None:
        """Store what each client learnt of BatchNorm and take it out of what is sent."""
        mask = self.layout.batch_norm_mask
        for row, task in enumerate(tasks):
            assert task.weights is not None
            self.local_batch_norm[task.client] = (task.weights + matrix[row])[mask]
        matrix[:, mask] = 0
