"""Adam and SGD over whole buffers: one call per step, whatever the number of layers or clients.

The arithmetic is that of `torch.optim.Adam` and `torch.optim.SGD`; what is left out is the bookkeeping
around it, which for small networks costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.training.base import BETA1, BETA2, EPSILON, TrainingParams

__all__ = ["BufferOptimizer", "OptimizerView"]


@dataclass(frozen=True)
class OptimizerView:
    """What one step works on: the rows of the same clients of every buffer."""

    weights: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    """Adam's running mean of gradients, or SGD's momentum (empty without)."""
    second: list[Tensor]
    """Adam's running mean of squared gradients (empty for SGD)."""


class BufferOptimizer:
    """Steps the weights of several clients at once: the first dimension of every buffer is the client.

    All clients of a step have made the same number of steps before. Gradients and running means have the shapes of the
    weights.

    >>> weights = [torch.ones(1, 3)]
    >>> optimizer = BufferOptimizer(TrainingParams(optimizer="sgd"), weights)
    >>> optimizer.begin(lr=0.5, rows=1)
    >>> optimizer.gradients[0].fill_(1.0)
    tensor([[1., 1., 1.]])
    >>> optimizer.step(optimizer.view(1))
    >>> weights[0]
    tensor([[0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, params: TrainingParams, weights: Sequence[Tensor]) -> None:
        self.params = params
        self.weights = list(weights)
        self.gradients = [torch.zeros_like(buffer) for buffer in weights]
        adam = params.optimizer == "adam"
        self.first = [torch.zeros_like(buffer) for buffer in weights] if adam or params.momentum else []
        self.second = [torch.zeros_like(buffer) for buffer in weights] if adam else []
        self.steps = torch.zeros((), dtype=torch.float32, device=self.weights[0].device)
        self.lr, self.count = params.lr, 0

    def begin(self, lr: float, rows: int) -> None:
        """Forget the past of the first `rows` clients."""
        self.lr = lr
        self.count = 0
        for buffer in (*self.first, *self.second):
            buffer[:rows].zero_()

    def view(self, rows: int) -> OptimizerView:
        """What a step of the first `rows` clients needs; worth keeping between steps."""

        def head(buffers: list[Tensor]) -> list[Tensor]:
            return [buffer[:rows] for buffer in buffers]

        return OptimizerView(head(self.weights), head(self.gradients), head(self.first), head(self.second))

    def step(self, view: OptimizerView) -> None:
        """One step along the gradients."""
        if self.params.optimizer == "adam":
            self._adam(view)
        else:
            self._sgd(view)

    def single_step_divisors(
        self, view: OptimizerView, start: Sequence[Tensor], lr: float
    ) -> list[Tensor] | None:
        """What gradients at `start` are divided by to give the first step from there.

        Adam's first step is −lr · g / (|g| + ε): its running means, once corrected for their bias, are g and g².

        Args:
            view: Whose gradients are at hand (weight decay is added to them) and whose weights are overwritten.
            start: One tensor per buffer: the weights at which the gradients were taken.
            lr: The learning rate.

        Returns:
            −(|g| + ε) / lr in the shapes and the memory of the weights; None for SGD, whose first step is −lr · g.
        """
        if self.params.weight_decay:
            for gradient, origin in zip(view.gradients, start, strict=True):
                gradient.add_(origin, alpha=self.params.weight_decay)
        if self.params.optimizer == "sgd":
            return None
        offset = view.weights[0].new_tensor(-EPSILON / lr)
        for gradient, divisor in zip(view.gradients, view.weights, strict=True):
            torch.abs(gradient, out=divisor)
            torch.add(offset, divisor, alpha=-1 / lr, out=divisor)
        return view.weights

    def _adam(self, view: OptimizerView) -> None:
        self.count += 1
        self.steps.fill_(self.count)
        torch._fused_adam_(
            view.weights,
            view.gradients,
            view.first,
            view.second,
            [],
            [self.steps] * len(view.weights),
            lr=self.lr,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.params.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _sgd(self, view: OptimizerView) -> None:
        torch._fused_sgd_(
            view.weights,
            view.gradients,
            view.first,
            weight_decay=self.params.weight_decay,
            momentum=self.params.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # momentum starts at zero, which gives what a first step would
        )
