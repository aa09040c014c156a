"""The buffers of clients that train side by side, and one step on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wardround.training.base import TrainingParams
from wardround.training.dense import DenseStack, Stage
from wardround.training.optimizers import BufferOptimizer, OptimizerView

__all__ = ["StepViews", "Workspace"]

KEPT_VIEWS = 1024
BLOCK_WEIGHTS = 150_000
"""Weights whose gradients and steps fit into a core's own cache."""


class Workspace:
    """Weights and optimiser state of a group of clients, activations of the samples of one step.

    A layer's weights are (client, output, input + 1): the last column is the bias, so that one matrix product
    does both. Activations are (client, sample, width + 1) with a last column of ones, laid end to end, so
    that any number of clients and samples is a prefix of the same buffer.
    """

    def __init__(
        self, stack: DenseStack, params: TrainingParams, clients: int, samples: int, device: torch.device
    ) -> None:
        self.stack, self.clients, self.samples, self.device = stack, clients, samples, device
        self.weights = [
            self._new(clients, stage.outputs, stage.inputs + (stage.bias is not None))
            for stage in stack.stages
        ]
        self.start = [torch.empty_like(buffer) for buffer in self.weights]
        self.shared = [torch.empty_like(buffer[:1]) for buffer in self.weights]
        self.optimizer = BufferOptimizer(params, self.weights)
        hidden = stack.stages[:-1]
        self.pre = [self._new(samples * stage.outputs) for stage in hidden]
        self.delta = [self._new(samples * stage.outputs) for stage in hidden]
        self.mask = [self._new(samples * stage.outputs) if stage.dropouts else None for stage in stack.stages]
        self.active = [torch.ones_like(self._new(samples, stage.outputs + 1)) for stage in hidden]
        self._tables: dict[str, Tensor] = {}
        self._views: dict[tuple[int, int], StepViews] = {}

    def _new(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.stack.dtype, device=self.device)

    def load(self, starts: Tensor, lr: float, keep_start: bool) -> None:
        """Lay in where each client begins (clients × D)."""
        count = len(starts)
        self._lay_in(starts, self.weights)
        if keep_start:
            for buffer, kept in zip(self.weights, self.start, strict=True):
                kept[:count] = buffer[:count]
        self.optimizer.begin(lr, count)

    def share(self, start: Tensor) -> None:
        """Lay in weights that all clients read and none changes."""
        self._lay_in(start[None], self.shared)

    def _lay_in(self, starts: Tensor, buffers: list[Tensor]) -> None:
        for stage, buffer in zip(self.stack.stages, buffers, strict=True):
            rows = buffer[: len(starts)]
            rows[:, :, : stage.inputs] = starts[:, stage.weight].unflatten(1, (stage.outputs, -1))
            if stage.bias is not None:
                rows[:, :, -1] = starts[:, stage.bias]

    def updates(self, starts: Tensor, out: Tensor) -> None:
        """Write where each client came to, minus where it began (clients × D)."""
        for part, value in self._parts(self.weights, len(starts)):
            shape = value.shape[1:]
            torch.sub(value, starts[:, part].unflatten(1, shape), out=out[:, part].unflatten(1, shape))

    def only_updates(self, step: StepViews, lr: float, out: Tensor) -> None:
        """Write what a single step from the shared weights adds (clients × D), after its backward pass.

        A few clients at a time: their gradients are made, turned into a step and written out while they are
        in the cache.
        """
        block = max(1, BLOCK_WEIGHTS // self.stack.size)
        for first in range(0, len(out), block):
            rows = out[first : first + block]
            view = self.optimizer.view(len(rows))
            step.gradients(view.gradients, slice(first, first + block))
            divisors = self.optimizer.only_step(view, self.shared, lr)
            steps = self._parts(view.gradients, len(rows))
            if divisors is None:
                for part, value in steps:
                    torch.mul(value, -lr, out=rows[:, part].unflatten(1, value.shape[1:]))
                continue
            for (part, value), (_, divisor) in zip(steps, self._parts(divisors, len(rows)), strict=True):
                torch.div(value, divisor, out=rows[:, part].unflatten(1, value.shape[1:]))

    def _parts(self, buffers: list[Tensor], clients: int) -> Iterator[tuple[slice, Tensor]]:
        """Where each weight and bias lies in a flat vector, and its values for all clients."""
        for stage, buffer in zip(self.stack.stages, buffers, strict=True):
            yield stage.weight, buffer[:clients, :, : stage.inputs]
            if stage.bias is not None:
                yield stage.bias, buffer[:clients, :, -1]

    def table(self, name: str, rows: int, width: int) -> Tensor:
        """Room for a table, the same memory each time: fresh memory costs more than filling it."""
        kept = self._tables.get(name)
        if kept is None or kept.numel() < rows * width:
            kept = self._tables[name] = self._new(rows * width)
        return kept[: rows * width].view(rows, width)

    def views(self, clients: int, samples: int) -> StepViews:
        """What a step of so many clients and samples works on."""
        found = self._views.get((clients, samples))
        if found is None:
            if len(self._views) >= KEPT_VIEWS:
                self._views.clear()
            found = self._views[clients, samples] = StepViews(self, clients, samples)
        return found


class StepViews:
    """The parts of the buffers for one number of clients and samples: making them costs as much as a step."""

    def __init__(self, work: Workspace, clients: int, samples: int) -> None:
        rows = clients * samples

        def prefix(buffer: Tensor, width: int) -> Tensor:
            return buffer.view(-1)[: rows * width].view(clients, samples, width)

        self.stages: tuple[Stage, ...] = work.stack.stages
        hidden = self.stages[:-1]
        self.pre = [prefix(b, stage.outputs) for b, stage in zip(work.pre, hidden, strict=True)]
        self.delta = [prefix(b, stage.outputs) for b, stage in zip(work.delta, hidden, strict=True)]
        self.delta_transposed = [delta.transpose(1, 2) for delta in self.delta]
        with_ones = [prefix(b, stage.outputs + 1) for b, stage in zip(work.active, hidden, strict=True)]
        self.active = [h[:, :, :-1] for h in with_ones]
        self.layer_input = [
            h if stage.bias is not None else h[:, :, :-1]
            for h, stage in zip(with_ones, self.stages[1:], strict=True)
        ]
        self.masks = [
            prefix(b, stage.outputs) if b is not None else torch.empty(0)
            for b, stage in zip(work.mask, self.stages, strict=True)
        ]
        self.optimizer: OptimizerView = work.optimizer.view(clients)
        self.start = [buffer[:clients] for buffer in work.start]
        self.shared = [w[0] for w in work.shared]
        self.weight_transposed = [w.transpose(1, 2) for w in self.optimizer.weights]
        self.weight_only = [
            w[:, :, : stage.inputs] for w, stage in zip(self.optimizer.weights, self.stages, strict=True)
        ]
        self._first_input: Tensor | None = None
        self._deltas: list[Tensor] = []

    def forward(self, inputs: Tensor, logits: Tensor, shared: bool) -> None:
        """Inputs (with a column of ones) to logits, with every client's own weights or with the shared ones."""
        h = inputs if self.stages[0].bias is not None else inputs[:, :, :-1]
        self._first_input = h
        for i, stage in enumerate(self.stages[:-1]):
            self._multiply(h, i, self.pre[i], shared)
            if stage.relu:
                torch.clamp_min(self.pre[i], 0, out=self.active[i])
            else:
                self.active[i].copy_(self.pre[i])
            if stage.dropouts:
                self.active[i].mul_(self.masks[i])
            h = self.layer_input[i]
        self._multiply(h, len(self.stages) - 1, logits, shared)

    def _multiply(self, h: Tensor, layer: int, out: Tensor, shared: bool) -> None:
        """h Wᵀ: for shared weights one product over the samples of all clients."""
        if shared:
            torch.mm(h.flatten(0, 1), self.shared[layer].T, out=out.flatten(0, 1))
        else:
            torch.bmm(h, self.weight_transposed[layer], out=out)

    def backward(self, delta: Tensor, shared: bool) -> None:
        """The loss's derivative by the logits to its derivatives by all pre-activations."""
        self._deltas = [*self.delta, delta]
        for i in range(len(self.stages) - 1, 0, -1):
            if shared:
                weight = self.shared[i][:, : self.stages[i].inputs]
                torch.mm(self._deltas[i].flatten(0, 1), weight, out=self.delta[i - 1].flatten(0, 1))
            else:
                torch.bmm(self._deltas[i], self.weight_only[i], out=self.delta[i - 1])
            if self.stages[i - 1].dropouts:
                self.delta[i - 1].mul_(self.masks[i - 1])
            if self.stages[i - 1].relu:
                torch.ops.aten.threshold_backward.grad_input(
                    self.delta[i - 1], self.pre[i - 1], 0, grad_input=self.delta[i - 1]
                )

    def gradients(self, into: list[Tensor], clients: slice | None = None) -> None:
        """The gradients of the weights of all or of some clients, after the backward pass."""
        assert self._first_input is not None
        transposed = [*self.delta_transposed, self._deltas[-1].transpose(1, 2)]
        inputs = [self._first_input, *self.layer_input]
        if clients is not None:
            transposed, inputs = [d[clients] for d in transposed], [h[clients] for h in inputs]
        for delta, h, gradient in zip(transposed, inputs, into, strict=True):
            torch.bmm(delta, h, out=gradient)

    def pull_to_start(self, mu: float) -> None:
        """Add the gradient μ (w − w_start) of FedProx's term."""
        for gradient, weight, start in zip(
            self.optimizer.gradients, self.optimizer.weights, self.start, strict=True
        ):
            gradient.add_(weight - start, alpha=mu)
