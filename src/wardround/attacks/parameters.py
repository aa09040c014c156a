"""Attacks that are defined on a client's parameters θ = w + g, as opposed to its update g."""

from __future__ import annotations

from torch import Tensor

from wardround.attacks.base import Attack, Knowledge
from wardround.errors import ParameterError

__all__ = ["require_global_weights"]


def require_global_weights(attack: Attack, knowledge: Knowledge, own: Tensor) -> Tensor:
    """w in the updates' precision, or an error that says what is missing."""
    if knowledge.global_weights is None:
        raise ParameterError(
            f"attack '{attack.name}' with of: parameters needs the global model: Knowledge(global_weights=…)"
        )
    return knowledge.global_weights.reshape(-1).to(own.dtype)
