"""Secure aggregation as the loop sees it: hospitals mask their updates, and nothing but their weighted sum is known.

The protocol itself is in `flower/secure_aggregation`, on the primitives of Flower's package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from wardround.updates import Updates

__all__ = ["LARGEST_ENTRY", "MASKED", "MaskedSum", "SumMasked", "masking_problem"]

MASKED = "secure-aggregation"
"""The mode's name."""
LARGEST_ENTRY = 2.0**22
"""Largest magnitude of an entry that can be masked; weights add up to at most 1, so a sum is not larger either."""


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """All that the server learns of a round's masked updates."""

    weights: Mapping[str, float]
    """Client → the factor of its update, fixed before updates were masked."""
    total: Tensor | None = None
    """D values: the sum of weight · update over `clients`; None where there is no sum."""
    clients: tuple[str, ...] = ()
    """Whose updates are in the sum: the others dropped out."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Client that dropped out → why."""
    reason: str | None = None
    """Why there is no sum."""


SumMasked = Callable[[Updates, Mapping[str, float], str], MaskedSum]
"""A whole round in one process: updates, client → weight, the order's hash → their masked sum."""


def masking_problem(update: np.ndarray) -> str | None:
    """Why an update (D values) cannot be masked; None where it can."""
    largest = float(np.abs(update).max()) if len(update) else 0.0
    if largest <= LARGEST_ENTRY:  # NaN compares false
        return None
    return f"an entry of {largest:g}; entries up to {LARGEST_ENTRY:g} can be masked"
