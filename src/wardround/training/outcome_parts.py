r"""An update as the sum of parts, one per outcome: what the patients of each outcome contributed along the training.

The gradient of a batch is the sum over its samples, so it splits by their outcomes, and so does every step that is
linear in gradients. With :math:`g^c` the share of outcome c in a gradient, the part of a step is

- SGD: :math:`-\eta\, m^c` with the momentum :math:`m^c \leftarrow \mu m^c + g^c`;
- Adam: :math:`-\eta\, \hat m^c / (\sqrt{\hat v'} + \varepsilon) + \pi^c r` with
  :math:`m^c \leftarrow \beta_1 m^c + (1-\beta_1) g^c` and :math:`v'` the running mean of
  :math:`\sum_c (g^c)^2`. Adam itself divides by the running mean of :math:`(\sum_c g^c)^2`, which is next to nothing
  where outcomes cancel: a part divided by that would be rounding, a thousand times enlarged. What is left of the step,
  :math:`r`, each outcome has by its share :math:`\pi^c` of the client's samples.

Weight decay and FedProx's term belong to no sample; each outcome has a share of them by its samples in the batch. The
part of the last outcome is what the others leave of the update, so that parts always add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.training.base import BETA1, BETA2, EPSILON
from wardround.training.optimizers import BufferOptimizer, OptimizerView

__all__ = ["OutcomeParts"]


class OutcomeParts:
    """The parts of all outcomes but the last, for the clients of an optimiser's buffers.

    >>> from wardround.training.base import TrainingParams
    >>> optimizer = BufferOptimizer(TrainingParams(optimizer="sgd"), [torch.zeros(1, 2)])
    >>> parts = OutcomeParts(optimizer, outcomes=2)
    >>> optimizer.begin(lr=0.5, rows=1); parts.begin(torch.tensor([[0.5, 0.5]]))
    >>> _ = optimizer.gradients[0].copy_(torch.tensor([[3.0, 4.0]]))
    >>> _ = parts.gradients[0][0].copy_(torch.tensor([[1.0, 4.0]]))
    >>> view = optimizer.view(1)
    >>> optimizer.step(view); parts.step(view)
    >>> parts.parts[0][0], optimizer.weights[0]
    (tensor([[-0.5000, -2.0000]]), tensor([[-1.5000, -2.0000]]))
    """

    def __init__(self, optimizer: BufferOptimizer, outcomes: int) -> None:
        def zeros() -> list[list[Tensor]]:
            return [[torch.zeros_like(buffer) for buffer in optimizer.weights] for _ in range(outcomes - 1)]

        self.optimizer = optimizer
        self.gradients, self.parts = zeros(), zeros()
        """Outcome → buffer → the share of its samples in the gradient, and in all steps so far."""
        self.first = zeros() if optimizer.first else []
        self.second = [torch.zeros_like(buffer) for buffer in optimizer.second]
        """Adam: the running mean of the outcomes' squared gradients."""
        self.shares = torch.empty(0, outcomes)

    def begin(self, shares: Tensor) -> None:
        """Forget the past of the first clients; `shares` (clients × outcomes) are those of their samples."""
        self.shares = shares.to(self.optimizer.weights[0])
        for buffers in (*self.parts, *self.first, self.second):
            for buffer in buffers:
                buffer[: len(shares)].zero_()

    def add_to_gradients(self, terms: list[Tensor], shares: Tensor) -> None:
        """Give each outcome its share of something that belongs to no sample.

        Args:
            terms: What the optimiser adds to the gradient, one tensor per buffer (clients × …).
            shares: clients × outcomes: each outcome's share of the samples of the step.
        """
        for outcome, gradients in enumerate(self.gradients):
            for gradient, term in zip(gradients, terms, strict=True):
                rows = gradient[: len(term)]
                rows.addcmul_(term, shares[:, outcome].view(-1, *[1] * (term.dim() - 1)))

    def step(self, view: OptimizerView) -> None:
        """Book the step that the optimiser has just made for the clients of `view`."""
        if self.optimizer.params.optimizer == "adam":
            self._adam(view)
            return
        rows, lr = len(view.weights[0]), self.optimizer.lr
        for outcome, parts in enumerate(self.parts):
            for place, part in enumerate(parts):
                step = self.gradients[outcome][place][:rows]
                if self.first:
                    momentum = self.optimizer.params.momentum
                    step = self.first[outcome][place][:rows].mul_(momentum).add_(step)
                part[:rows].add_(step, alpha=-lr)

    def _adam(self, view: OptimizerView) -> None:
        rows, lr, count = len(view.weights[0]), self.optimizer.lr, self.optimizer.count
        first, second = 1 - BETA1**count, 1 - BETA2**count
        for place, gradient in enumerate(view.gradients):
            last = gradient.clone()
            squares = torch.zeros_like(gradient)
            for gradients in self.gradients:
                own = gradients[place][:rows]
                squares.addcmul_(own, own)
                last.sub_(own)
            squares.addcmul_(last, last)
            of_parts = self.second[place][:rows].lerp_(squares, 1 - BETA2).div(second).sqrt_().add_(EPSILON)
            of_step = view.second[place].div(second).sqrt_().add_(EPSILON)
            mean = view.first[place] / first
            left = mean.div(of_parts).sub_(mean.div_(of_step)).mul_(lr)
            for outcome, parts in enumerate(self.parts):
                own_mean = self.first[outcome][place][:rows].lerp_(
                    self.gradients[outcome][place][:rows], 1 - BETA1
                )
                share = self.shares[:rows, outcome].view(-1, *[1] * (left.dim() - 1))
                parts[place][:rows].addcdiv_(own_mean, of_parts, value=-lr / first).addcmul_(left, share)
