"""Scaling: multiply one's own update, or one's own parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, Parameters, register
from wardround.attacks.search_space import Range


@register("scaling")
class Scaling(Attack):
    r"""Multiply what is sent by a factor.

    .. math::
        \text{of: update}\quad     \tilde g &= \lambda\,g \\
        \text{of: parameters}\quad \tilde g &= \lambda\,(w + g) - w

    The FedBNP document scales the update (λ = 10). The DOS paper's clients send parameters θ = w + g, and
    its attackers send λθ (λ = 100 and −0.5): the server then sees the update λθ − w, which for λ = −0.5
    undoes the model itself rather than one step of it.

    >>> import torch
    >>> from wardround import attacks
    >>> g, w = torch.tensor([[1.0, -2.0]]), torch.tensor([4.0, 4.0])
    >>> attacks.create("scaling").craft(g, attacks.Knowledge(round=1))
    tensor([[ 10., -20.]])
    >>> attacks.create("scaling", factor=-0.5, of="parameters").craft(g, attacks.Knowledge(1, global_weights=w))
    tensor([[-6.5000, -5.0000]])
    """

    class Params(Parameters):
        factor: Annotated[float, Range(-100, 100)] = 10.0
        """What is sent, as a multiple of what was learnt; it may be negative."""
        of: Literal["update", "parameters"] = "update"
        """What is multiplied: the update, or the whole local model as the DOS paper does."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        factor = self.params.factor
        if self.params.of == "update":
            return factor * own
        weights = self.require_global_weights(knowledge, own)
        return (factor * own).add_(weights, alpha=factor - 1)
