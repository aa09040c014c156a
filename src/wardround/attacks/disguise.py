"""Crafted rows that look like the attacker's own honest update: at its norm, and with its own residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor

from wardround.attacks.matrix_operations import norms_of
from wardround.registry import Parameters

__all__ = ["DisguiseParams", "Keep", "disguised", "keep_own"]

Keep = Literal["nothing", "norm", "residual"]
Craft = TypeVar("Craft", bound=Callable[..., Tensor])


class DisguiseParams(Parameters):
    """What a crafted row keeps of the attacker's own honest update."""

    new: ClassVar[frozenset[str]] = frozenset({"keep"})
    keep: Keep = "nothing"
    """Of the own honest update: its `norm`, or its norm and its `residual` at right angles to the crafted row."""


def keep_own(crafted: Tensor, own: Tensor, keep: Keep) -> Tensor:
    r"""Crafted rows c with what they keep of the honest rows g.

    - `norm`: :math:`\|g\|\, c/\|c\|`;
    - `residual`: :math:`\|g\|\, (c + r)/\|c + r\|` with :math:`r = g - \langle g, \hat c\rangle \hat c`. Each attacker
      then differs from the others as honest clients do, and no norm gives it away.

    A row without a direction stays zero (`norm`), or is the honest one (`residual`).

    Args:
        crafted: B × D.
        own: B × D honest updates.
        keep: What to keep.

    >>> keep_own(torch.tensor([[-2.0, 0.0]]), torch.tensor([[3.0, 4.0]]), "residual") / torch.tensor(5**0.5)
    tensor([[-1.,  2.]])
    """
    if keep == "nothing":
        return crafted
    if keep == "residual":
        direction = crafted.double() / _length(crafted)
        along = (own.double() * direction).sum(1, keepdim=True)
        crafted = crafted.double() + own.double() - along * direction
    scale = norms_of(own)[:, None] / _length(crafted)
    return (crafted.double() * scale).to(own.dtype)


def _length(rows: Tensor) -> Tensor:
    """B × 1 norms; 1 for a row without a direction."""
    norms = norms_of(rows)[:, None]
    return torch.where(norms > 0, norms, 1.0)


def disguised(craft: Craft) -> Craft:
    """Decorator of `craft`, for attacks whose parameters are `DisguiseParams`."""

    @wraps(craft)
    def keeping(self: Any, own: Tensor, *rest: Any, **named: Any) -> Tensor:
        return keep_own(craft(self, own, *rest, **named), own, self.params.keep)

    return cast(Craft, keeping)
