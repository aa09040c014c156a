"""All clients at once, for networks of dense layers.

The weights of a group of clients are the rows of one buffer per layer; a step is a batched matrix product
over the clients that still have a batch. Forward, backward and optimiser are written out: for networks
this small, autograd costs several times the mathematics.

For a layer with input h (with a column of ones for the bias), weights W and pre-activation z = h Wᵀ:

    ∂L/∂W = (∂L/∂z)ᵀ h,    ∂L/∂h = (∂L/∂z) W,    ∂L/∂z = ∂L/∂h ⊙ mask ⊙ [z > 0]

and at the logits ∂L/∂z = (σ(z) − y) / size of the batch, σ the sigmoid or the softmax. Of a survival task y is the
event indicator and σ what `survival.cox_slopes` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wardround.randomness import torch_generator
from wardround.survival import cox_losses, cox_slopes, events_of
from wardround.threads import one_thread
from wardround.training.base import (
    ClientTask,
    Objective,
    Trained,
    Trainer,
    TrainingParams,
    empty_matrix,
)
from wardround.training.batch_plan import KeptBatchPlans, Step
from wardround.training.client_buffers import ClientBuffers, StepViews
from wardround.training.dense import DenseStack
from wardround.training.outcome_parts import OutcomeParts
from wardround.training.prepared_inputs import PreparedInputs
from wardround.training.sample_order import shuffled_all

__all__ = ["VectorizedTrainer"]

GROUP_WEIGHTS = 800_000
"""Weights of the clients that train together: few enough for the cache with their gradients and moments,
many enough that what a group costs beside arithmetic does not count. The same on every machine, so that the
results are."""
WINDOW_VALUES = 250_000
"""Input values laid out for the coming steps."""


class VectorizedTrainer(Trainer):
    """Trains clients in groups of similar size, every group in one go."""

    engine: ClassVar[str] = "vectorized"

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        params: TrainingParams,
        device: torch.device | None = None,
    ) -> None:
        self.stack = DenseStack.of(model)
        self.objective, self.params = objective, params
        self.device = device or torch.device("cpu")
        self.group_size = max(1, GROUP_WEIGHTS // self.stack.size)
        self.prepared = PreparedInputs(objective.prepare, self.stack.dtype, self.device)
        self.plans = KeptBatchPlans(params.batch_size, params.epochs, params.steps)
        self.buffers: ClientBuffers | None = None

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        matrix = empty_matrix(len(tasks), self.stack.size, self.stack.dtype, self.device)
        parts = None
        if outcomes is not None:
            parts = torch.empty(
                len(tasks), outcomes, self.stack.size, dtype=self.stack.dtype, device=self.device
            )
        losses = torch.empty(len(tasks), dtype=torch.float64, device=self.device)
        start = global_weights.detach().to(self.device, self.stack.dtype)
        sizes = np.array([task.data.rows.shape[0] for task in tasks], dtype=np.int64)
        # Products round by where a client lies in memory: equal sizes go by name, not by the order of the tasks.
        by_size = np.array(
            sorted(range(len(tasks)), key=lambda i: (-sizes[i], tasks[i].client)), dtype=np.int64
        )
        with one_thread(), torch.no_grad():
            for first in range(0, len(by_size), self.group_size):
                members = by_size[first : first + self.group_size]
                group = _Group(
                    self, start, [tasks[i] for i in members], sizes[members], lr, prox_mu, outcomes
                )
                places = torch.from_numpy(members).to(self.device)
                losses[places] = group.train()
                self._write(group, matrix, members)
                if parts is not None:
                    parts[places] = group.split_updates(matrix[places])
        device = global_weights.device
        return Trained(matrix.to(device), losses.to(device), None if parts is None else parts.to(device))

    def _write(self, group: _Group, matrix: Tensor, members: np.ndarray) -> None:
        """Write a group's updates into its clients' rows, straight where these lie side by side."""
        first, count = int(members[0]), len(members)
        if (members == np.arange(first, first + count)).all():
            group.write_updates(matrix[first : first + count])
            return
        rows = group.buffers.table("rows", count, self.stack.size)
        group.write_updates(rows)
        matrix.index_copy_(0, torch.from_numpy(members).to(self.device), rows)

    def close(self) -> None:
        """Forget prepared data, plans and buffers."""
        self.plans = KeptBatchPlans(self.params.batch_size, self.params.epochs, self.params.steps)
        self.prepared.clear()
        self.buffers = None

    def buffers_for(self, clients: int, samples: int) -> ClientBuffers:
        """Buffers for at least so many clients, and samples in a step; kept from round to round."""
        kept = self.buffers
        if kept is None or kept.clients < clients or kept.samples < samples:
            if kept is not None:
                clients, samples = max(kept.clients, clients), max(kept.samples, samples)
            self.buffers = ClientBuffers(self.stack, self.params, clients, samples, self.device)
        assert self.buffers is not None
        return self.buffers


class _Group:
    """One group of clients, largest first, trained from beginning to end.

    Args:
        trainer: Whose buffers, plans and prepared inputs are used.
        start: D global weights.
        tasks: One per client, the largest first.
        sizes: Samples of each client.
        lr: The learning rate of the round.
        prox_mu: Strength of the proximal term.
        outcomes: Split updates into the parts of so many outcomes; None: do not.
    """

    def __init__(
        self,
        trainer: VectorizedTrainer,
        start: Tensor,
        tasks: list[ClientTask],
        sizes: np.ndarray,
        lr: float,
        prox_mu: float,
        outcomes: int | None,
    ) -> None:
        self.tasks, self.stack, self.objective = tasks, trainer.stack, trainer.objective
        self.params, self.device, self.prox_mu = trainer.params, trainer.device, prox_mu
        self.sizes = sizes
        self.plan = trainer.plans.of(sizes)
        widest = max(step.clients * step.width for step in self.plan.steps)
        self.buffers = trainer.buffers_for(len(tasks), widest)
        self.samples = trainer.prepared.of(tasks)
        targets = torch.cat([task.data.targets for task in tasks]).to(self.device)
        self.targets = self.objective.target_table(targets, self.stack.stages[-1].outputs, self.stack.dtype)
        self.masks = (
            [torch_generator(task.seed, "dropout") for task in tasks] if self.stack.has_dropout else []
        )
        self.augmentation = (
            [torch_generator(task.seed, "augment") for task in tasks] if self.objective.augment else []
        )
        own_starts = any(task.weights is not None for task in tasks)
        self.corrected = any(task.correction is not None for task in tasks)
        self.stealth = (
            torch.tensor([task.stealth for task in tasks], dtype=self.stack.dtype, device=self.device)
            if any(task.stealth for task in tasks)
            else None
        )
        self.lr = lr
        self.starts = self._stack_starts(start) if own_starts else start.expand(len(tasks), -1)
        # Clients that make a single step from the same weights need no weights of their own.
        plain = not self.corrected and self.stealth is None and outcomes is None
        self.shared = len(self.plan.steps) == 1 and not own_starts and plain
        self.parts = None if outcomes is None else self.buffers.outcome_parts(outcomes)
        self.outcome_of = self._outcomes(outcomes)

    def train(self) -> Tensor:
        """Make all steps. Returns the mean loss of each client over its samples and epochs (N, float64)."""
        if self.shared:
            self.buffers.share(self.starts[0])
        else:
            self.buffers.load(self.starts, self.lr, keep_start=self.prox_mu > 0 or self.stealth is not None)
            if self.corrected:
                self.buffers.load_corrections(self._stack_corrections())
        if self.parts is not None:
            owned = self.outcome_of.split([len(task.data) for task in self.tasks])
            self.parts.begin(torch.stack([own.mean(0) for own in owned]))
        return self._run()

    def split_updates(self, updates: Tensor) -> Tensor:
        """The parts of the clients' updates (clients × D): clients × outcomes × D."""
        assert self.parts is not None
        others = [self.buffers.flatten(part, len(updates)) for part in self.parts.parts]
        parts = torch.stack([*others, updates], 1)
        parts[:, -1] -= parts[:, :-1].sum(1)
        return parts

    def write_updates(self, out: Tensor) -> None:
        """Write the clients' updates into `out` (clients × D)."""
        if self.shared:
            step = self.plan.steps[0]
            self.buffers.single_step_updates(self.buffers.views(step.clients, step.width), self.lr, out)
        else:
            self.buffers.updates(self.starts, out)

    def _stack_starts(self, start: Tensor) -> Tensor:
        """Where each client begins (clients × D): at the global weights, or at its own."""
        rows = [start if task.weights is None else task.weights.detach() for task in self.tasks]
        return torch.stack([row.to(self.device, self.stack.dtype) for row in rows])

    def _stack_corrections(self) -> Tensor:
        """What is added to each client's gradients (clients × D): zero for a client without."""
        nothing = torch.zeros(self.stack.size, dtype=self.stack.dtype, device=self.device)
        rows = [task.correction for task in self.tasks]
        return torch.stack(
            [nothing if row is None else row.to(self.device, self.stack.dtype) for row in rows]
        )

    def _outcomes(self, outcomes: int | None) -> Tensor:
        """samples × outcomes zeros and ones: of all clients, one after the other; empty where nothing is split."""
        if outcomes is None:
            return torch.empty(0, 0)
        targets = torch.cat([task.data.targets for task in self.tasks]).to(self.device)
        return functional.one_hot(targets.long(), outcomes).to(self.stack.dtype)

    def _run(self) -> Tensor:
        """All steps, a window of them at a time. Returns the mean loss of each client (N)."""
        seeds = [task.seed for task in self.tasks]
        orders = [shuffled_all(seeds, self.sizes, epoch) for epoch in range(self.plan.epochs)]
        order = orders[0] if len(orders) == 1 else np.concatenate(orders)
        sample = torch.from_numpy(order[self.plan.position]).to(self.device)
        weight = torch.from_numpy(self.plan.weight).to(self.device, self.stack.dtype)
        client = torch.from_numpy(self.plan.client).to(self.device)
        outputs = self.stack.stages[-1].outputs
        scale = weight[:, None] if self.objective.multi_class else weight[:, None] / outputs
        total = torch.zeros(len(self.tasks), dtype=torch.float64, device=self.device)
        for steps in self.plan.windows(WINDOW_VALUES // self.samples.width):
            window = slice(steps[0].first, steps[-1].last)
            slots = window.stop - window.start
            inputs = self.buffers.table("inputs", slots, self.samples.width)
            targets = self.buffers.table("targets", slots, outputs)
            logits = self.buffers.table("logits", slots, outputs)
            self.samples.take(sample[window], inputs)
            torch.index_select(self.targets, 0, sample[window], out=targets)
            if self.objective.survival:
                targets.masked_fill_(weight[window, None] == 0, -torch.inf)  # a spare slot is no patient
            if self.augmentation:
                self._augment(steps, inputs)
            outcomes = self.outcome_of[sample[window]] if self.parts is not None else None
            for step in steps:
                part = slice(step.first - window.start, step.last - window.start)
                all_of_step = slice(step.first, step.last)
                own = None if outcomes is None else outcomes[part] * (weight[all_of_step, None] > 0)
                self._step(step, inputs[part], targets[part], scale[all_of_step], logits[part], own)
            losses = self._losses(logits, targets, steps)
            total.index_add_(0, client[window], losses * (weight[window] > 0))
        seen = torch.from_numpy(self.plan.samples_seen()).to(self.device)
        return total / seen

    def _losses(self, logits: Tensor, targets: Tensor, steps: list[Step]) -> Tensor:
        """The loss of every slot (float64) of some steps, from its logits and targets (slots × outputs)."""
        if self.objective.survival:
            sizes = [step.clients * step.width for step in steps]
            parts = zip(steps, logits.split(sizes), targets.split(sizes), strict=True)
            return torch.cat(
                [
                    cox_losses(
                        own.view(step.clients, -1).double(), times.view(step.clients, -1).double()
                    ).flatten()
                    for step, own, times in parts
                ]
            )
        if self.objective.multi_class:
            return -(functional.log_softmax(logits, 1) * targets).sum(1).double()
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").double().mean(1)

    def _augment(self, steps: list[Step], inputs: Tensor) -> None:
        """Augment the inputs of some steps (slots × width) in place.

        Batch by batch, each client with its own generator, as if it trained alone.
        """
        assert self.objective.augment is not None
        origin = steps[0].first
        for step in steps:
            for client in range(step.clients):
                first = step.first - origin + client * step.width
                size = int(self.plan.batch_sizes[step.batch + client])
                batch = self.samples.as_input(inputs[first : first + size])
                changed = self.objective.augment(batch, self.augmentation[client])
                self.samples.put(changed, inputs[first : first + size])

    def _step(
        self,
        step: Step,
        inputs: Tensor,
        targets: Tensor,
        scale: Tensor,
        logits: Tensor,
        outcomes: Tensor | None,
    ) -> None:
        """Forward, backward and one step of the optimiser for the clients of a step.

        Args:
            step: Which clients, and how many samples each: clients · width slots in all.
            inputs: slots × (features + 1).
            targets: slots × outputs.
            scale: slots × 1: what the derivative of each slot's loss is multiplied by; 0 for a spare slot.
            logits: slots × outputs: filled.
            outcomes: slots × outcomes zeros and ones, 0 for a spare slot; None where nothing is split.
        """
        views = self.buffers.views(step.clients, step.width)
        if self.masks:
            self._draw_masks(step, views, inputs)
        shape = (step.clients, step.width, -1)
        views.forward(inputs.view(shape), logits.view(shape), self.shared)
        delta = self._slopes(step, logits, targets).mul_(scale)
        views.backward(delta.view(shape), self.shared)
        if self.shared:
            return  # gradients are made when updates are written
        views.gradients(views.optimizer.gradients)
        if self.parts is not None and outcomes is not None:
            self._split_gradients(views, self.parts, outcomes.view(shape))
        if self.stealth is not None:
            views.stay_near_start(self.stealth[: step.clients])
        if self.prox_mu:
            views.pull_to_start(self.prox_mu)
        if self.corrected:
            self.buffers.correct(views.optimizer.gradients)
        self.buffers.optimizer.step(views.optimizer)
        if self.parts is not None:
            self.parts.step(views.optimizer)

    def _split_gradients(self, views: StepViews, parts: OutcomeParts, outcomes: Tensor) -> None:
        """The shares of all outcomes but the last in the gradients (outcomes: clients × samples × outcomes)."""
        clients = len(outcomes)
        for outcome, gradients in enumerate(parts.gradients):
            into = [buffer[:clients] for buffer in gradients]
            views.gradients(into, samples=outcomes[:, :, outcome : outcome + 1])
        decay = self.params.weight_decay
        if not (decay or self.prox_mu):
            return
        terms = [decay * weight for weight in views.optimizer.weights]
        if self.prox_mu:
            for term, weight, start in zip(terms, views.optimizer.weights, views.start, strict=True):
                term.add_(weight - start, alpha=self.prox_mu)
        counts = outcomes.sum(1)
        parts.add_to_gradients(terms, counts / counts.sum(1, keepdim=True))

    def _slopes(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        """The derivative of every slot's loss by its logits (slots × outputs)."""
        if self.objective.survival:
            batches = (step.clients, step.width)
            slopes = cox_slopes(logits.view(batches), targets.view(batches)).view(-1, 1)
            return slopes.sub_(events_of(targets).to(slopes.dtype))
        slopes = torch.softmax(logits, 1) if self.objective.multi_class else torch.sigmoid(logits)
        return slopes.sub_(targets)

    def _draw_masks(self, step: Step, views: StepViews, inputs: Tensor) -> None:
        """Draw every client's masks from its own generator, layer after layer, as `nn.Dropout` would.

        Masks of the layers are written into `views.masks`; dropout of the input is applied to `inputs` at once.
        """
        sizes = self.plan.batch_sizes[step.batch : step.batch + step.clients].tolist()
        generators = self.masks

        def draw(into: Tensor, drop: float) -> Tensor:
            for client, size in enumerate(sizes):
                drawn = torch.empty(size, into.shape[2], dtype=into.dtype)
                into[client, :size] = drawn.bernoulli_(1 - drop, generator=generators[client])
            return into.div_(1 - drop)

        features = inputs.view(step.clients, step.width, -1)[:, :, : self.stack.stages[0].inputs]
        for drop in self.stack.input_dropouts:
            features.mul_(draw(torch.ones_like(features), drop))
        for stage, mask in zip(self.stack.stages, views.masks, strict=True):
            for number, drop in enumerate(stage.dropouts):
                if number == 0:
                    draw(mask, drop)
                else:
                    mask.mul_(draw(torch.ones_like(mask), drop))
