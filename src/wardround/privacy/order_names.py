"""How an order is named: the model it starts from, and a hash of all that it asks.

Training is much the same every time it starts from the same model. Two sums of it with other coefficients could be
subtracted, whatever the rounds are called. The name shows which orders have their start in common.
"""

from __future__ import annotations

import hashlib

__all__ = ["order_name", "start_of"]

START_DIGITS = 32


def order_name(asked: bytes, weights: bytes) -> str:
    """The name of an order: what is asked except for the weights, and the weights it starts from.

    >>> one, other = order_name(b"round 1", b"weights"), order_name(b"round 2", b"weights")
    >>> one == other, start_of(one) == start_of(other)
    (False, True)
    """
    start = hashlib.sha256(weights).hexdigest()[:START_DIGITS]
    return f"{start}.{hashlib.sha256(start.encode() + asked).hexdigest()}"


def start_of(name: str) -> str:
    """The part of an order's name that stands for the model it starts from."""
    return name.partition(".")[0]
