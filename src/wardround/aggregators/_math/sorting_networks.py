"""Sorting networks: fixed sequences of compare-exchanges that order N values whatever they are.

Because the sequence does not depend on the data, one vector instruction sorts many columns at once.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["pruned", "sorting_network"]

Comparator = tuple[int, int]


def sorting_network(n: int) -> list[Comparator]:
    """Batcher's odd-even merge sort for `n` wires; a comparator puts the smaller value on its first wire.

    K. E. Batcher, "Sorting networks and their applications", AFIPS 1968; the form for any `n` is
    Knuth's algorithm M (The Art of Computer Programming, volume 3, section 5.2.2).

    >>> sorting_network(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    comparators: list[Comparator] = []
    sorted_run = 1
    while sorted_run < n:
        gap = sorted_run
        while gap >= 1:
            for start in range(gap % sorted_run, n - gap, 2 * gap):
                for low in range(start, min(start + gap, n - gap)):
                    high = low + gap
                    if low // (2 * sorted_run) == high // (2 * sorted_run):
                        comparators.append((low, high))
            gap //= 2
        sorted_run *= 2
    return comparators


def pruned(network: Iterable[Comparator], wires: Iterable[int]) -> list[Comparator]:
    """The comparators that some of these wires depend on: a median needs fewer than a full sort.

    >>> len(sorting_network(20)), len(pruned(sorting_network(20), [9, 10]))
    (103, 84)
    """
    needed, kept = set(wires), []
    for low, high in reversed(list(network)):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    return kept[::-1]
