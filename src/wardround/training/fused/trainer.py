"""All steps of a client in one compiled call, for networks of dense layers on the CPU.

A client's weights, gradients and means stay in the cache from its first batch to its last, and nothing is called
between two products. Clients are trained one by one, each alone, so that neither their number nor their order nor the
number of threads changes a bit of a client's update.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from wardround.compilation import can_compile
from wardround.randomness import torch_generator
from wardround.threads import one_thread
from wardround.training.base import (
    BETA1,
    BETA2,
    EPSILON,
    ClientTask,
    Objective,
    Trained,
    Trainer,
    TrainingParams,
    empty_matrix,
)
from wardround.training.dense import DenseStack
from wardround.training.prepared_inputs import GroupInputs, PreparedInputs
from wardround.training.sample_order import shuffled_all

__all__ = ["FusedTrainer", "why_not_fused"]

GROUP_VALUES = 16_000_000
"""Input values and masks of the clients that are laid out at a time."""


def why_not_fused() -> str | None:
    """What keeps this engine from running here, None if nothing does."""
    return None if can_compile() else "it needs numba (pip install 'wardround[fast]')"


class FusedTrainer(Trainer):
    """Trains clients one by one in compiled loops, on as many threads as there are workers."""

    engine: ClassVar[str] = "fused"

    def __init__(
        self, model: nn.Module, objective: Objective, params: TrainingParams, workers: int = 1
    ) -> None:
        self.stack = DenseStack.of(model)
        self.objective, self.params, self.workers = objective, params, workers
        self.prepared = PreparedInputs(objective.prepare, self.stack.dtype, torch.device("cpu"))
        self._network: tuple[int, Any] = (0, None)

    def network(self, samples: int) -> Any:
        """The network as the loops know it, for at least so many samples in a batch; kept from round to round."""
        if self._network[0] < samples:
            self._network = (samples, _network(self.stack, samples))
        return self._network[1]

    def train(
        self,
        global_weights: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None = None,
    ) -> Trained:
        size, dtype = self.stack.size, self.stack.dtype
        matrix = empty_matrix(len(tasks), size, dtype, torch.device("cpu"))
        losses = torch.empty(len(tasks), dtype=torch.float64)
        parts = torch.empty(len(tasks) if outcomes else 0, outcomes or 0, size, dtype=dtype)
        start = global_weights.detach().to("cpu", dtype)
        with one_thread(), torch.no_grad():
            for group in self._groups(tasks):
                own = _Group(self, start, tasks[group], lr, prox_mu, outcomes)
                own.train(matrix[group], losses[group], parts[group])
        device = global_weights.device
        return Trained(matrix.to(device), losses.to(device), parts.to(device) if outcomes else None)

    def _groups(self, tasks: Sequence[ClientTask]) -> Iterator[slice]:
        """The tasks in runs whose inputs and masks fit into memory."""
        p = self.params
        width = 1 + self.stack.stages[0].inputs + sum(s.outputs for s in self.stack.stages if s.dropouts)
        first, values = 0, 0
        for i, task in enumerate(tasks):
            turns = p.batch_size * p.steps if p.steps else len(task.data) * p.epochs
            own = max(turns, len(task.data)) * width
            if i > first and values + own > GROUP_VALUES:
                yield slice(first, i)
                first, values = i, 0
            values += own
        if tasks:
            yield slice(first, len(tasks))

    def run(self, kernel: Any, sizes: np.ndarray) -> None:
        """Call `kernel(clients)` for all clients, the work of the threads about equal."""
        threads = min(self.workers, len(sizes))
        if threads == 1:
            kernel(np.arange(len(sizes)))
            return
        hands: list[list[int]] = [[] for _ in range(threads)]
        loads = [0.0] * threads
        for client in np.argsort(-sizes, kind="stable").tolist():
            hand = loads.index(min(loads))
            hands[hand].append(client)
            loads[hand] += float(sizes[client])
        with ThreadPoolExecutor(threads - 1) as pool:  # ended here: processes may be forked between rounds
            others = [pool.submit(kernel, np.array(hand)) for hand in hands[1:]]
            kernel(np.array(hands[0]))
            for other in others:
                other.result()

    def close(self) -> None:
        """Forget prepared data."""
        self.prepared.clear()


class _Group:
    """Clients whose samples are laid out together.

    Args:
        trainer: Whose prepared inputs and threads are used.
        start: D global weights.
        tasks: One per client.
        lr: The learning rate of the round.
        prox_mu: Strength of the proximal term.
        outcomes: Split updates into the parts of so many outcomes; None: do not.
    """

    def __init__(
        self,
        trainer: FusedTrainer,
        start: Tensor,
        tasks: Sequence[ClientTask],
        lr: float,
        prox_mu: float,
        outcomes: int | None,
    ) -> None:
        self.trainer, self.tasks, self.start = trainer, tasks, start
        self.lr, self.prox_mu, self.outcomes = lr, prox_mu, outcomes
        self.stack, self.params, self.objective = trainer.stack, trainer.params, trainer.objective
        self.loops = _loops()
        p = self.params
        self.sizes = np.array([len(task.data) for task in tasks], dtype=np.int64)
        per_epoch = -(-self.sizes // p.batch_size)
        self.steps = per_epoch * p.epochs if p.steps is None else np.full_like(per_epoch, p.steps)
        self.epochs = -(-self.steps // per_epoch)
        turns = self.epochs * self.sizes
        self.first_slot = np.cumsum(turns) - turns
        self.order = self._order(int(turns.sum()))

    def train(self, matrix: Tensor, losses: Tensor, parts: Tensor) -> None:
        """Write updates (clients × D), mean losses (clients) and parts (clients × outcomes × D)."""
        own = [task.weights for task in self.tasks if task.weights is not None]
        starts = torch.stack([row.detach().to("cpu", self.stack.dtype) for row in [self.start, *own]])
        has_own = np.array([task.weights is not None for task in self.tasks])
        corrections = torch.empty(0, self.stack.size, dtype=self.stack.dtype)
        if any(task.correction is not None for task in self.tasks):
            corrections = torch.zeros(len(self.tasks), self.stack.size, dtype=self.stack.dtype)
            for row, task in zip(corrections, self.tasks, strict=True):
                if task.correction is not None:
                    row.copy_(task.correction)
        kernel = functools.partial(
            self.loops.train_clients,
            net=self.trainer.network(int(min(self.params.batch_size, self.sizes.max()))),
            data=self._data(),
            rules=self._rules(),
            starts=starts.numpy(),
            start_of=np.where(has_own, np.cumsum(has_own), 0),
            corrections=corrections.numpy(),
            stealth=np.array([task.stealth for task in self.tasks], dtype=np.float64),
            out=matrix.numpy(),
            losses=losses.numpy(),
            parts_out=parts.numpy(),
        )
        self.trainer.run(kernel, self.steps * np.minimum(self.sizes, self.params.batch_size))

    def _order(self, slots: int) -> np.ndarray:
        """Slot → sample: the clients' orders of every epoch that they need."""
        seeds = np.array([task.seed for task in self.tasks], dtype=np.uint64)
        if self.epochs.max() == 1:
            return shuffled_all(seeds.tolist(), self.sizes, 0)
        first_sample = np.cumsum(self.sizes) - self.sizes
        order = np.empty(slots, dtype=np.int64)
        for epoch in range(int(self.epochs.max())):
            active = np.flatnonzero(self.epochs > epoch)
            sizes = self.sizes[active]
            client = np.repeat(np.arange(len(active)), sizes)
            begins = np.cumsum(sizes) - sizes
            drawn = shuffled_all(seeds[active].tolist(), sizes, epoch)
            slot = self.first_slot[active] + epoch * sizes - begins
            order[slot[client] + np.arange(len(client))] = drawn + (first_sample[active] - begins)[client]
        return order

    def _rules(self) -> Any:
        p = self.params
        kind = self.loops.SOFTMAX if self.objective.multi_class else self.loops.SIGMOID
        return self.loops.Rules(
            loss=self.loops.COX if self.objective.survival else kind,
            batch_size=p.batch_size,
            epochs=p.epochs,
            steps=p.steps or 0,
            adam=p.optimizer == "adam",
            momentum=p.momentum,
            decay=p.weight_decay,
            prox_mu=float(self.prox_mu),
            lr=float(self.lr),
            beta1=BETA1,
            beta2=BETA2,
            epsilon=EPSILON,
        )

    def _data(self) -> Any:
        targets = torch.cat([task.data.targets for task in self.tasks])
        outcomes, shares = np.empty(0, dtype=np.int64), np.empty((0, 0))
        if self.outcomes:
            outcomes = targets.long().numpy()
            client = np.repeat(np.arange(len(self.sizes)), self.sizes)
            cells = np.bincount(client * self.outcomes + outcomes, minlength=len(self.sizes) * self.outcomes)
            shares = cells.reshape(-1, self.outcomes) / self.sizes[:, None]
        inputs = self.trainer.prepared.of(self.tasks)
        table, masks, first_mask = (
            inputs.table,
            torch.empty(0, dtype=self.stack.dtype),
            np.zeros_like(self.sizes),
        )
        rows = np.arange(len(targets)) if inputs.rows is None else inputs.rows.numpy()
        if self.objective.augment is not None or self.stack.has_dropout:
            table, masks, first_mask = self._draw(inputs)
            rows = rows[:0]
        return self.loops.Data(
            table=table.numpy(),
            rows=rows,
            targets=self.objective.target_table(
                targets, self.stack.stages[-1].outputs, self.stack.dtype
            ).numpy(),
            outcomes=outcomes,
            shares=shares.astype(table.numpy().dtype),
            order=self.order,
            sizes=self.sizes,
            masks=masks.numpy(),
            first_slot=self.first_slot,
            first_mask=first_mask,
        )

    def _draw(self, inputs: GroupInputs) -> tuple[Tensor, Tensor, np.ndarray]:
        """What chance does to every slot: a row of input for each, the masks, and each client's first mask value.

        Every client draws from its own generators, batch by batch and layer by layer, as if it trained alone.
        """
        stages = [stage for stage in self.stack.stages if stage.dropouts]
        table = torch.empty(len(self.order), inputs.width, dtype=self.stack.dtype)
        inputs.take(torch.from_numpy(self.order), table)
        masks: list[Tensor] = []
        drawn, first_mask = 0, []
        for client, task in enumerate(self.tasks):
            first_mask.append(drawn)
            dropout, augmentation = (
                torch_generator(task.seed, "dropout"),
                torch_generator(task.seed, "augment"),
            )
            slot = int(self.first_slot[client])
            for size in self._batch_sizes(client):
                batch = table[slot : slot + size]
                if self.objective.augment is not None:
                    inputs.put(self.objective.augment(inputs.as_input(batch), augmentation), batch)
                if self.stack.input_dropouts:
                    batch[:, :-1] *= _mask(
                        size, inputs.width - 1, self.stack.input_dropouts, batch.dtype, dropout
                    )
                masks += [_mask(size, s.outputs, s.dropouts, batch.dtype, dropout).flatten() for s in stages]
                drawn += size * sum(stage.outputs for stage in stages)
                slot += size
        joined = torch.cat(masks) if masks else torch.empty(0, dtype=self.stack.dtype)
        return table, joined, np.array(first_mask, dtype=np.int64)

    def _batch_sizes(self, client: int) -> Iterator[int]:
        samples, size = int(self.sizes[client]), self.params.batch_size
        per_epoch = -(-samples // size)
        for step in range(int(self.steps[client])):
            yield min(size, samples - step % per_epoch * size)


def _mask(
    rows: int, width: int, drops: tuple[float, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """The product of the masks that `nn.Dropout` layers would draw one after the other (rows × width)."""
    mask = torch.ones(rows, width, dtype=dtype)
    for drop in drops:
        drawn = torch.empty(rows, width, dtype=dtype)
        mask *= drawn.bernoulli_(1 - drop, generator=generator).div_(1 - drop)
    return mask


@functools.cache
def _loops() -> ModuleType:
    from wardround.training.fused import loops

    return loops


def _network(stack: DenseStack, samples: int) -> Any:
    """Where weights, activations and derivatives of the network lie in memory, for so many samples in a batch."""
    loops = _loops()
    lanes = loops.REGISTER_BYTES // torch.empty(0, dtype=stack.dtype).element_size()

    def filled_up(values: np.ndarray) -> np.ndarray:
        whole: np.ndarray = -(-values // lanes) * lanes
        return whole

    def places(sizes: np.ndarray) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    stages = stack.stages
    inputs = np.array([stage.inputs for stage in stages])
    outputs = np.array([stage.outputs for stage in stages])
    terms = inputs + np.array([stage.bias is not None for stage in stages])
    columns, turned_row, active_row = filled_up(outputs), filled_up(inputs), filled_up(inputs + 1)
    return loops.Network(
        samples=samples,
        inputs=inputs,
        outputs=outputs,
        terms=terms,
        columns=columns,
        place=places(terms * columns),
        turned=places(outputs * turned_row),
        turned_row=turned_row,
        active=places(samples * active_row),
        active_row=active_row,
        delta=places(samples * columns),
        relu=np.array([int(stage.relu) for stage in stages]),
        dropout=np.array([int(bool(stage.dropouts)) for stage in stages]),
        weight=np.array([stage.weight.start for stage in stages]),
        bias=np.array([-1 if stage.bias is None else stage.bias.start for stage in stages]),
    )
