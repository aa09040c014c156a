"""Which weighted sums of updates hide the single ones: the check that stewards and hospitals make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["MAX_SHARE", "MIN_COHORT", "cohort_problem", "too_few"]

MIN_COHORT = 3
MAX_SHARE = 0.5
COUNTS_FROM = 0.1
"""What is left beside the largest min_cohort − 1 clients must be this share of 1/min_cohort of the sum: a cohort is not
padded with weights of nothing."""
SUM_SLACK = 1e-6
"""Coefficients are rounded to what a cipher can multiply with: their sum may exceed 1 by this."""


def cohort_problem(
    coefficients: Mapping[str, float], min_cohort: int = MIN_COHORT, max_share: float = MAX_SHARE
) -> str | None:
    """Why a sum with these coefficients would show too much of one client; None where it does not.

    Args:
        coefficients: client → its factor in the sum.
        min_cohort: fewest clients with a share that counts.
        max_share: largest share of one client in the whole.

    >>> cohort_problem({"a": 0.4, "b": 0.3, "c": 0.3})
    >>> cohort_problem({"a": 0.4, "b": 0.6, "c": 1e-9})
    'a cohort of 2, fewer than 3 clients'
    """
    values = list(coefficients.values())
    numbers = all(_is_number(value) and 0 <= value <= 2 for value in values)  # NaN compares false
    total = sum(values) if numbers else 0.0
    if not numbers or not 0 < total <= 1 + SUM_SLACK:
        return "coefficients must be finite, not negative, not all 0, and add up to at most 1"
    counted = _count(values, COUNTS_FROM / min_cohort * total)
    if counted < min_cohort:
        return too_few(counted, min_cohort)
    largest = max(values) / total
    if largest > max_share + SUM_SLACK:
        return f"one client has {largest:.3f} of the sum, more than {max_share:g}"
    return None


def _count(values: Sequence[float], floor: float) -> int:
    """How many clients a sum hides behind each other: the largest ones, until what is left is below the floor."""
    rest, counted = math.fsum(values), 0
    for value in sorted(values, reverse=True):
        if rest < floor:
            break
        rest, counted = rest - value, counted + 1
    return counted


def too_few(count: int, min_cohort: int) -> str:
    """That a cohort is too small, in words."""
    return f"a cohort of {count}, fewer than {min_cohort} clients"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
