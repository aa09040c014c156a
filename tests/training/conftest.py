"""The plain definition of local training, and small federations to train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from wardround.randomness import torch_generator
from wardround.training import ClientData, ClientTask, Objective, TrainingParams
from wardround.training.base import batches, has_batch_norm
from wardround.updates import Layout


def same(batch: Tensor) -> Tensor:
    """Stored samples are model input."""
    return batch


@pytest.fixture
def plain_train() -> Callable[..., tuple[Tensor, Tensor]]:
    """Local training as a textbook has it: autograd, torch.optim, a fresh copy of the network a client."""

    def train(
        model: nn.Module,
        objective: Objective,
        params: TrainingParams,
        start: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        layout = Layout.of(model)
        rows, losses = [], []
        for task in tasks:
            own = copy.deepcopy(model).train()
            begin = start if task.weights is None else task.weights
            own.load_state_dict(layout.unflatten(begin), strict=False)
            anchor = [parameter.detach().clone() for parameter in own.parameters()]
            optimizer: torch.optim.Optimizer
            if params.optimizer == "adam":
                optimizer = torch.optim.Adam(own.parameters(), lr=lr, weight_decay=params.weight_decay)
            else:
                optimizer = torch.optim.SGD(
                    own.parameters(), lr=lr, momentum=params.momentum, weight_decay=params.weight_decay
                )
            total, seen = 0.0, 0
            generator = torch_generator(task.seed, "augment")
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(torch_generator(task.seed, "dropout").get_state())
                smallest = 2 if has_batch_norm(model) else 1
                for batch in batches(task, params.batch_size, params.epochs, smallest, params.steps):
                    inputs = objective.prepare(task.data.inputs[task.data.rows[batch]])
                    inputs = inputs if task.transform is None else task.transform(inputs)
                    inputs = inputs if objective.augment is None else objective.augment(inputs, generator)
                    loss = objective.loss(own(inputs), task.data.targets[batch])
                    proximal = sum(
                        (p - a).square().sum() for p, a in zip(own.parameters(), anchor, strict=True)
                    )
                    optimizer.zero_grad()
                    if task.stealth:
                        loss_of_class = loss
                        squares = sum(
                            (p - a).square().sum() for p, a in zip(own.parameters(), anchor, strict=True)
                        )
                        loss = (1 - task.stealth) * loss
                        if float(squares.detach()) > 0:
                            loss = loss + task.stealth * squares.sqrt()
                    if task.correction is not None:  # the gradient of ⟨correction, w⟩ is the correction
                        corrections = layout.unflatten(task.correction)
                        proximal = proximal * prox_mu / 2 + sum(
                            (corrections[name] * value).sum() for name, value in own.named_parameters()
                        )
                        (loss + proximal).backward()
                    else:
                        (loss + prox_mu / 2 * proximal if prox_mu else loss).backward()
                    optimizer.step()
                    total += (loss_of_class if task.stealth else loss).item() * len(batch)
                    seen += len(batch)
            rows.append(layout.flatten(own.state_dict()) - begin)
            losses.append(total / seen)
        return torch.stack(rows), torch.tensor(losses, dtype=torch.float64)

    return train


@pytest.fixture
def federation() -> Callable[..., list[ClientTask]]:
    """Clients of given sizes with random samples."""

    def make(
        sizes: Sequence[int],
        shape: tuple[int, ...],
        outputs: int = 1,
        task: str = "binary",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> list[ClientTask]:
        generator = torch.Generator().manual_seed(seed)
        total = sum(sizes)
        inputs = torch.randn(total, *shape, generator=generator, dtype=dtype)
        if task == "multi-label":
            targets = (torch.rand(total, outputs, generator=generator) < 0.4).float()
        else:
            targets = torch.randint(0, max(outputs, 2), (total,), generator=generator)
        rows = torch.randperm(total, generator=generator).split(list(sizes))
        return [
            ClientTask(f"hospital-{i:02d}", ClientData(inputs, own, targets[own]), seed=seed * 1000 + i)
            for i, own in enumerate(rows)
        ]

    return make


@pytest.fixture
def objective() -> Callable[[str], Objective]:
    """The objective of a task whose stored samples are model input."""
    return lambda task: Objective(multi_class=task == "multi-class", prepare=same)
