"""Where a server practises for FedBNP: trusted samples to train on, samples to evaluate on, attacks to try out.

It is built from the dataset's validation split and never handed the campaign: it cannot know who is
Byzantine in the run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wardround import attacks
from wardround.attacks.base import Attack, LocalData
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset, Task
from wardround.errors import ConfigError
from wardround.metrics import auroc
from wardround.randomness import numpy_generator, seed_for
from wardround.training.base import ClientData, ClientTask, Trainer, TrainingParams, learning_rate
from wardround.training.dense import DenseStack, NotDense
from wardround.updates import Layout

__all__ = ["RootPracticeGround", "batched_logits"]

VALUE_SAMPLES = {True: 256, False: 96}
"""Validation samples that a candidate model is evaluated on: of a dense network, and of one that costs more."""
VALUE_BATCH = 32
"""Samples that go through a convolutional network at once."""
CASE_MIXES = (0.1, 0.3, 1.0, 10.0)
"""Concentrations of the made-up hospitals' case mixes, from nearly one class each to nearly alike."""
LARGEST = 10.0
"""Made-up hospitals whose size nobody asked for have between 1/10 and 10 times as many samples as the root set."""
MOST_SAMPLES = 20
"""Times the root set: a made-up hospital has no more samples, whatever size is asked for."""
CASE_MIX_CLASSES = 4
"""Classes whose share in a hospital's case mix the reference is made blind to, at most: each costs a training."""
MOST_BYZANTINE = 0.4
"""Share of the made-up hospitals that attack, at most."""


@dataclass(eq=False)
class RootPracticeGround:
    """A `PracticeGround` (see `aggregators.base`) made of the server's own samples."""

    dataset: Dataset
    root: ClientData
    validation_rows: Tensor
    model: nn.Module
    trainer: Trainer
    training: TrainingParams
    rounds: int
    seed: int
    practice_attacks: Mapping[str, tuple[str, Mapping[str, float]]]
    """What can be planted, as the rule declares it: own name → (registered name, parameters)."""
    prox_mu: float = 0.0
    local_batch_norm: bool = False
    weights: Tensor | None = None
    """The global weights of the round."""

    def __post_init__(self) -> None:
        if not len(self.validation_rows):
            raise ConfigError(
                f"the root set takes all {len(self.root)} validation samples; the rule needs some to judge "
                "candidate models by: lower root.samples"
            )

    def at(self, weights: Tensor) -> RootPracticeGround:
        """The practice ground in a round that starts from these global weights."""
        for prepared in ("layout", "evaluation_samples", "network", "stack"):
            getattr(self, prepared)  # built once, then shared by all copies
        now = copy.copy(self)
        now.weights = weights
        return now

    @property
    def attacks(self) -> Sequence[str]:
        """What can be planted in this dataset: false labels need a second class."""
        one_class = len(self.dataset.class_names) < 2
        return tuple(
            name
            for name, (registered, _) in self.practice_attacks.items()
            if not (one_class and attacks.registry.get(registered).poisons_data)
        )

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    @cached_property
    def network(self) -> nn.Module:
        """A copy to put candidate weights into."""
        network = copy.deepcopy(self.model).eval()
        if self.local_batch_norm:
            # BatchNorm stays with the clients, so the global model has none that was trained. Normalise by the
            # validation samples themselves: they are this server's own population.
            for layer in network.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.momentum = 0.0
                    layer.train()
        return network

    @cached_property
    def stack(self) -> DenseStack | None:
        try:
            return DenseStack.of(self.model)
        except NotDense:
            return None

    @cached_property
    def evaluation_samples(self) -> tuple[Tensor, Tensor]:
        """Model input and targets of the validation samples that candidate models are evaluated on."""
        order = numpy_generator(self.seed, "value").permutation(len(self.validation_rows))
        chosen = np.sort(order[: VALUE_SAMPLES[self.stack is not None]])
        rows = self.validation_rows[torch.from_numpy(chosen)]
        split = self.dataset.validation
        return self.dataset.prepare(split.inputs[rows]), split.targets[rows]

    def value(self, weights: Tensor) -> Tensor:
        """K × D global weights → K metrics: AUROC (accuracy of a multi-class task); 0 for a broken model."""
        inputs, targets = self.evaluation_samples
        with torch.no_grad():
            if self.stack is not None:
                logits = batched_logits(self.stack, weights.to(self.stack.dtype), inputs)
            else:
                logits = torch.stack([self._logits(candidate, inputs) for candidate in weights])
        return self._metric(logits, targets)

    def _logits(self, weights: Tensor, inputs: Tensor) -> Tensor:
        tensors = self.network.state_dict()
        for name, value in self.layout.unflatten(weights).items():
            tensors[name].copy_(value)
        return torch.cat([self.network(batch) for batch in inputs.split(VALUE_BATCH)])

    def _metric(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.dataset.task is Task.MULTICLASS:
            right = (logits.argmax(2) == targets).double().mean(1)
            return torch.where(torch.isfinite(logits).all(2).all(1), right, 0.0)
        areas = []
        for c, column in enumerate(targets.view(len(targets), -1).double().unbind(1)):
            known = ~column.isnan()
            positive = column[known] > 0
            if bool(positive.any()) and not bool(positive.all()):
                areas.append(auroc(logits[:, known, c], positive))
        if not areas:  # one class only: there is no ranking to measure
            return ((logits > 0) == (targets.view(len(targets), -1) > 0)).double().mean((1, 2))
        return torch.stack(areas).mean(0)

    def reference(self, round: int, group: int | None = None, draw: int = 0) -> Tensor:
        r"""The server's own update, blind to case mix (see `PracticeGround`).

        A hospital with other shares of the classes than the server is pulled along the directions in which the
        classes pull, whoever it is. So the reference learns from as many samples of each class, and what is left
        of those directions in it is taken out:

        .. math:: g_{ref} = g - A^\top (A A^\top)^{+} A g, \qquad A_c = g_c - g_C

        with g_c learnt from samples of class c alone. Where samples have several findings, or are all of one
        class, it is g, learnt from a resample.
        """
        mine = np.arange(len(self.root)) if group is None else self._halves(group)[0]
        rng = numpy_generator(self.seed, "reference", round, -1 if group is None else group, draw)
        classes = self._classes(mine)
        tasks = [
            self._resampled(np.concatenate(classes), rng, [1 / len(one) for one in classes for _ in one])
        ]
        if len(classes) > 1:
            tasks += [self._resampled(one, rng) for one in classes]
        rows = self._train(tasks, round)
        return rows[0] if len(rows) == 1 else _without(rows[0], rows[1:-1] - rows[-1])

    def _classes(self, mine: np.ndarray) -> list[np.ndarray]:
        """Samples of the root set by class, the largest classes first; what has no classes is one."""
        targets = self.root.targets[torch.from_numpy(mine)].numpy()
        if targets.ndim > 1:
            return [mine]
        classes = [mine[targets == c] for c in np.unique(targets)]
        return sorted(classes, key=len, reverse=True)[:CASE_MIX_CLASSES]

    def _resampled(
        self, mine: np.ndarray, rng: np.random.Generator, weights: Sequence[float] | None = None
    ) -> ClientTask:
        """Training on as many samples as the root set has, drawn from these."""
        chances = None if weights is None else np.asarray(weights) / np.sum(weights)
        drawn = rng.choice(mine, len(self.root), p=chances)
        return self._on(drawn, "reference", int(rng.integers(2**63)))

    def root_updates(
        self, round: int, count: int, group: int = 0, draw: int = 0, sizes: Sequence[int] | None = None
    ) -> Tensor:
        """Honest training on resamples of the root data by made-up hospitals (see `PracticeGround`)."""
        return self._train([self._task(round, group, draw, row, sizes) for row in range(count)], round)

    def plant(
        self,
        honest: Tensor,
        attack: str,
        round: int,
        group: int = 0,
        draw: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """An attack by some of the made-up hospitals (see `PracticeGround`)."""
        name, params = self.practice_attacks[attack]
        member = attacks.create(name, **params)
        byzantine = self._byzantine(attack, group, len(honest))
        rows = byzantine.nonzero().flatten().tolist()
        if member.poisons_data:
            tasks = [self._poisoned(self._task(round, group, draw, row, sizes), member) for row in rows]
            return byzantine, self._train(tasks, round)
        clients = [f"made-up-{row}" for row in range(len(honest))]
        campaign = Campaign(
            member, [clients[row] for row in rows], seed=seed_for(self.seed, "plant", attack, group, draw)
        )
        saved = honest[byzantine]
        campaign.strike(honest, clients, {}, round, self.weights, None, len(clients), in_place=True)
        crafted = honest[byzantine]
        honest[byzantine] = saved
        return byzantine, crafted

    def _byzantine(self, attack: str, group: int, hospitals: int) -> Tensor:
        rng = numpy_generator(self.seed, "made-up", "byzantine", attack, group)
        count = int(rng.integers(1, max(1, math.floor(MOST_BYZANTINE * hospitals)) + 1))
        mask = torch.zeros(hospitals, dtype=torch.bool)
        mask[torch.from_numpy(rng.permutation(hospitals)[:count])] = True
        return mask

    def _train(self, tasks: list[ClientTask], round: int) -> Tensor:
        assert self.weights is not None, "at(weights) comes first"
        lr = learning_rate(self.training, round, self.rounds)
        matrix = self.trainer.train(self.weights, tasks, lr, self.prox_mu).matrix
        if self.local_batch_norm:
            matrix[:, self.layout.batch_norm_mask] = 0
        return matrix

    def _task(
        self, round: int, group: int, draw: int, row: int, sizes: Sequence[int] | None = None
    ) -> ClientTask:
        """A made-up hospital's work: it learns from the half of the root set that its group's reference never sees."""
        n, mine = len(self.root), self._halves(group)[1]
        concentration = numpy_generator(self.seed, "made-up", "mix", group).choice(CASE_MIXES)
        who = numpy_generator(self.seed, "made-up", "hospital", group, row)
        size = int(n * LARGEST ** who.uniform(-1, 1)) if sizes is None else int(sizes[row])
        chances = self._case_mix(mine, float(concentration), who)
        seed = seed_for(self.seed, "made-up", "resample", round, group, draw, row)
        drawn = np.random.default_rng(seed).choice(mine, min(max(2, size), MOST_SAMPLES * n), p=chances)
        return self._on(drawn, f"made-up-{group}-{row}", seed)

    def _halves(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The root samples of a group's reference, and those of its hospitals."""
        n = len(self.root)
        order = numpy_generator(self.seed, "made-up", "halves", group).permutation(n)
        return (order, order) if n < 4 else (order[: n // 2], order[n // 2 :])

    def _on(self, samples: np.ndarray, name: str, seed: int) -> ClientTask:
        """Training on these samples of the root set."""
        drawn = torch.from_numpy(samples)
        data = ClientData(self.root.inputs, self.root.rows[drawn], self.root.targets[drawn])
        return ClientTask(name, data, seed)

    def _case_mix(self, mine: np.ndarray, concentration: float, rng: np.random.Generator) -> np.ndarray:
        """Chances of the samples to be drawn: each class has its own factor, as in a Dirichlet partition."""
        targets = self.root.targets[torch.from_numpy(mine)].numpy()
        if targets.ndim > 1:  # several findings a sample: no classes to mix
            return np.full(len(mine), 1 / len(mine))
        factors = rng.gamma(concentration, size=len(self.dataset.class_names)) + 1e-3
        chances = factors[targets]
        shares: np.ndarray = chances / chances.sum()
        return shares

    def _poisoned(self, task: ClientTask, member: Attack) -> ClientTask:
        data = task.data
        own = LocalData(
            data.inputs[data.rows],
            data.targets,
            len(self.dataset.class_names),
            self.dataset.task is Task.MULTILABEL,
        )
        lie = member.poison(own, torch.Generator().manual_seed(task.seed))
        return replace(task, data=replace(data, targets=lie.targets))


def _without(row: Tensor, directions: Tensor) -> Tensor:
    """What is left of a row when all that lies in the span of these directions is taken out."""
    gram, dots = (directions @ directions.T).double(), (directions @ row).double()
    shares = torch.linalg.pinv(gram, rtol=1e-6, hermitian=True) @ dots
    rest: Tensor = row - shares.to(row.dtype) @ directions
    return rest


def batched_logits(stack: DenseStack, weights: Tensor, inputs: Tensor) -> Tensor:
    """K × D weights of one dense network, n samples → K × n × outputs logits, all models in one go.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> batched_logits(DenseStack.of(net), torch.eye(2), torch.tensor([[3.0, 4.0]])).flatten()
    tensor([3., 4.])
    """
    hidden = inputs.flatten(1).to(weights.dtype)[None]
    for stage in stack.stages:
        weight = weights[:, stage.weight].view(-1, stage.outputs, stage.inputs)
        hidden = hidden @ weight.mT
        if stage.bias is not None:
            hidden = hidden + weights[:, None, stage.bias]
        if stage.relu:
            hidden = hidden.relu()
    return hidden
