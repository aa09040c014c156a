"""All subsets of a round's rows, for rules that look at every one of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, combinations
from math import comb

import numpy as np
import torch
from torch import Tensor

from wardround.errors import ParameterError

__all__ = ["MOST_SUBSETS", "check_subsets", "subsets_without"]

MOST_SUBSETS = 200_000
"""More are refused: 20 clients with f = 8 have 125,970."""


def check_subsets(rule: str, clients: int, f: int) -> None:
    """Raise if there are too many ways to leave out f of so many clients."""
    count = comb(clients, f)
    if count > MOST_SUBSETS:
        raise ParameterError(
            f"{rule}: looks at every way to leave out f={f} of N={clients} clients, {count:,} of them; at most "
            f"{MOST_SUBSETS:,} work: give a smaller f, or take caf or multi-krum"
        )


@lru_cache(maxsize=4)
def subsets_without(clients: int, f: int) -> Tensor:
    """Every choice of N−f from N places, one per line, in the order of `itertools.combinations`.

    >>> subsets_without(3, 1).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    size = clients - f
    places = np.fromiter(chain.from_iterable(combinations(range(clients), size)), dtype=np.int64)
    return torch.from_numpy(places).view(-1, size)
