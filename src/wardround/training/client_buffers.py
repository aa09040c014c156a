"""The buffers of clients that train side by side, and one step on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wardround.training.base import TrainingParams
from wardround.training.dense import DenseStack, Stage
from wardround.training.optimizers import BufferOptimizer, OptimizerView
from wardround.training.outcome_parts import OutcomeParts

__all__ = ["ClientBuffers", "StepViews"]

KEPT_VIEWS = 1024
"""Pairs of numbers (clients, samples) whose views are kept."""
BLOCK_WEIGHTS = 150_000
"""Weights whose gradients and steps fit into a core's own cache."""


class ClientBuffers:
    """Weights and optimiser state of a group of clients, and activations of the samples of one step.

    The last column of a layer's weights is the bias, and the last column of its input is ones, so that one matrix
    product does both. Activations of clients × samples lie end to end, so that any number of clients and samples is a
    prefix of the same buffer.

    Attributes:
        weights: clients × outputs × (inputs + 1) per layer: where each client has come to.
        start: The same shape: where each client began, kept for the proximal term.
        corrections: The same shape: what is added to each client's gradients; empty until there are any.
        shared: 1 × outputs × (inputs + 1) per layer: weights that all clients read and none changes.
        pre: samples · outputs values per hidden layer: pre-activations z.
        delta: The same: ∂L/∂z.
        mask: The same, for each layer with dropout: zeros and 1 / (1 − p).
        active: samples × (outputs + 1) per hidden layer: activations and a column of ones.
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
        self.corrections: list[Tensor] = []
        self.shared = [torch.empty_like(buffer[:1]) for buffer in self.weights]
        self.optimizer = BufferOptimizer(params, self.weights)
        hidden = stack.stages[:-1]
        self.pre = [self._new(samples * stage.outputs) for stage in hidden]
        self.delta = [self._new(samples * stage.outputs) for stage in hidden]
        self.mask = [self._new(samples * stage.outputs) if stage.dropouts else None for stage in stack.stages]
        self.active = [torch.ones_like(self._new(samples, stage.outputs + 1)) for stage in hidden]
        self._tables: dict[str, Tensor] = {}
        self._views: dict[tuple[int, int], StepViews] = {}
        self._outcome_parts: OutcomeParts | None = None

    def outcome_parts(self, outcomes: int) -> OutcomeParts:
        """Room for the parts of so many outcomes, the same each time."""
        kept = self._outcome_parts
        if kept is None or len(kept.parts) != outcomes - 1:
            kept = self._outcome_parts = OutcomeParts(self.optimizer, outcomes)
        return kept

    def flatten(self, buffers: list[Tensor], clients: int) -> Tensor:
        """Values that lie as the weights do, as flat vectors (clients × D)."""
        flat = self._new(clients, self.stack.size)
        for part, value in self._parts(buffers, clients):
            flat[:, part] = value.flatten(1)
        return flat

    def _new(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.stack.dtype, device=self.device)

    def load(self, starts: Tensor, lr: float, keep_start: bool) -> None:
        """Set where each client begins (clients × D), and forget what the optimiser remembers."""
        count = len(starts)
        self._copy_in(starts, self.weights)
        if keep_start:
            for buffer, kept in zip(self.weights, self.start, strict=True):
                kept[:count] = buffer[:count]
        self.optimizer.begin(lr, count)

    def load_corrections(self, corrections: Tensor) -> None:
        """Set what is added to the gradients of every client (clients × D)."""
        if not self.corrections:
            self.corrections = [torch.empty_like(buffer) for buffer in self.weights]
        self._copy_in(corrections, self.corrections)

    def correct(self, gradients: list[Tensor]) -> None:
        """Add the corrections of the first clients to their gradients (n × outputs × (inputs + 1) per layer)."""
        for gradient, correction in zip(gradients, self.corrections, strict=True):
            gradient.add_(correction[: len(gradient)])

    def share(self, start: Tensor) -> None:
        """Set the weights (D) that all clients read and none changes."""
        self._copy_in(start[None], self.shared)

    def _copy_in(self, starts: Tensor, buffers: list[Tensor]) -> None:
        """Flat vectors (n × D) into the first n rows of each layer's buffer."""
        for stage, buffer in zip(self.stack.stages, buffers, strict=True):
            rows = buffer[: len(starts)]
            rows[:, :, : stage.inputs] = starts[:, stage.weight].unflatten(1, (stage.outputs, -1))
            if stage.bias is not None:
                rows[:, :, -1] = starts[:, stage.bias]

    def updates(self, starts: Tensor, out: Tensor) -> None:
        """Write into `out` (clients × D) where each client has come to, minus where it began."""
        for part, value in self._parts(self.weights, len(starts)):
            shape = value.shape[1:]
            torch.sub(value, starts[:, part].unflatten(1, shape), out=out[:, part].unflatten(1, shape))

    def single_step_updates(self, step: StepViews, lr: float, out: Tensor) -> None:
        """Write into `out` (clients × D) what one step from the shared weights adds, after its backward pass.

        A few clients at a time: their gradients are computed, turned into a step and written out while they are
        in the cache.
        """
        block = max(1, BLOCK_WEIGHTS // self.stack.size)
        for first in range(0, len(out), block):
            rows = out[first : first + block]
            view = self.optimizer.view(len(rows))
            step.gradients(view.gradients, slice(first, first + block))
            divisors = self.optimizer.single_step_divisors(view, self.shared, lr)
            steps = self._parts(view.gradients, len(rows))
            if divisors is None:
                for part, value in steps:
                    torch.mul(value, -lr, out=rows[:, part].unflatten(1, value.shape[1:]))
                continue
            for (part, value), (_, divisor) in zip(steps, self._parts(divisors, len(rows)), strict=True):
                torch.div(value, divisor, out=rows[:, part].unflatten(1, value.shape[1:]))

    def _parts(self, buffers: list[Tensor], clients: int) -> Iterator[tuple[slice, Tensor]]:
        """For each weight and bias its place in a flat vector, and its values (clients × …) in these buffers."""
        for stage, buffer in zip(self.stack.stages, buffers, strict=True):
            yield stage.weight, buffer[:clients, :, : stage.inputs]
            if stage.bias is not None:
                yield stage.bias, buffer[:clients, :, -1]

    def table(self, name: str, rows: int, width: int) -> Tensor:
        """A table (rows × width) in the same memory each time: fresh memory costs more than filling it."""
        kept = self._tables.get(name)
        if kept is None or kept.numel() < rows * width:
            kept = self._tables[name] = self._new(rows * width)
        return kept[: rows * width].view(rows, width)

    def views(self, clients: int, samples: int) -> StepViews:
        """What a step of so many clients and samples works on."""
        views = self._views.get((clients, samples))
        if views is None:
            if len(self._views) >= KEPT_VIEWS:
                self._views.clear()
            views = self._views[clients, samples] = StepViews(self, clients, samples)
        return views


class StepViews:
    """The parts of the buffers for one number of clients and samples: making them costs as much as a step."""

    def __init__(self, buffers: ClientBuffers, clients: int, samples: int) -> None:
        rows = clients * samples

        def prefix(buffer: Tensor, width: int) -> Tensor:
            """clients × samples × width: the beginning of a buffer."""
            return buffer.view(-1)[: rows * width].view(clients, samples, width)

        self.stages: tuple[Stage, ...] = buffers.stack.stages
        hidden = self.stages[:-1]
        self.pre = [prefix(b, stage.outputs) for b, stage in zip(buffers.pre, hidden, strict=True)]
        self.delta = [prefix(b, stage.outputs) for b, stage in zip(buffers.delta, hidden, strict=True)]
        self.delta_transposed = [delta.transpose(1, 2) for delta in self.delta]
        with_ones = [prefix(b, stage.outputs + 1) for b, stage in zip(buffers.active, hidden, strict=True)]
        self.active = [h[:, :, :-1] for h in with_ones]
        self.layer_input = [
            h if stage.bias is not None else h[:, :, :-1]
            for h, stage in zip(with_ones, self.stages[1:], strict=True)
        ]
        self.masks = [
            prefix(b, stage.outputs) if b is not None else torch.empty(0)
            for b, stage in zip(buffers.mask, self.stages, strict=True)
        ]
        self.optimizer: OptimizerView = buffers.optimizer.view(clients)
        self.start = [buffer[:clients] for buffer in buffers.start]
        self.shared = [w[0] for w in buffers.shared]
        self.weight_transposed = [w.transpose(1, 2) for w in self.optimizer.weights]
        self.weight_only = [
            w[:, :, : stage.inputs] for w, stage in zip(self.optimizer.weights, self.stages, strict=True)
        ]
        self._first_input: Tensor | None = None
        self._deltas: list[Tensor] = []

    def forward(self, inputs: Tensor, logits: Tensor, shared: bool) -> None:
        """From inputs to logits.

        Args:
            inputs: clients × samples × (features + 1), with a last column of ones.
            logits: clients × samples × outputs: filled.
            shared: With the shared weights, not every client's own.
        """
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
        """h Wᵀ of one layer into `out`; with shared weights one product over the samples of all clients."""
        if shared:
            torch.mm(h.flatten(0, 1), self.shared[layer].T, out=out.flatten(0, 1))
        else:
            torch.bmm(h, self.weight_transposed[layer], out=out)

    def backward(self, delta: Tensor, shared: bool) -> None:
        """From ∂L/∂z of the logits (clients × samples × outputs) to ∂L/∂z of every hidden layer, in `delta`."""
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

    def gradients(
        self, into: list[Tensor], clients: slice | None = None, samples: Tensor | None = None
    ) -> None:
        """Write ∂L/∂W into `into` (n × outputs × (inputs + 1) per layer), after `backward`.

        Args:
            into: One tensor per layer.
            clients: Only of these; None: of all.
            samples: clients × samples × 1: how much each sample counts; None: each once.
        """
        assert self._first_input is not None
        transposed = [*self.delta_transposed, self._deltas[-1].transpose(1, 2)]
        inputs = [self._first_input, *self.layer_input]
        if clients is not None:
            transposed, inputs = [d[clients] for d in transposed], [h[clients] for h in inputs]
        if samples is not None:
            transposed = [d * samples.transpose(1, 2) for d in transposed]
        for delta, h, gradient in zip(transposed, inputs, into, strict=True):
            torch.bmm(delta, h, out=gradient)

    def pull_to_start(self, mu: float) -> None:
        """Add μ (w − w_start), the gradient of FedProx's term, to the gradients of the weights."""
        for gradient, weight, start in zip(
            self.optimizer.gradients, self.optimizer.weights, self.start, strict=True
        ):
            gradient.add_(weight - start, alpha=mu)

    def stay_near_start(self, stealth: Tensor) -> None:
        """Turn gradients of L into those of (1−λ)·L + λ‖w − w_start‖, with a λ per client (`stealth`, clients)."""
        away = [weight - start for weight, start in zip(self.optimizer.weights, self.start, strict=True)]
        distances = torch.stack([part.flatten(1).square().sum(1) for part in away]).sum(0).sqrt()
        pull = torch.where(distances > 0, stealth / distances, 0.0)
        for gradient, part in zip(self.optimizer.gradients, away, strict=True):
            gradient.mul_((1 - stealth)[:, None, None]).add_(part.mul_(pull[:, None, None]))
