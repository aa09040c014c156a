"""Sorting networks: fixed sequences of compare-exchanges that order N values whatever they are.

Because the sequence does not depend on the data, one vector instruction sorts many columns at once.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Comparator", "selecting", "sorting_network"]

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


def selecting(network: Iterable[Comparator], wires: Iterable[int]) -> list[Comparator]:
    """The comparators after which these wires hold the same values as after all, in whatever order among themselves.

    Enough for a median and for sums: what only orders values that are summed up anyway is left out.

    >>> len(sorting_network(20)), len(selecting(sorting_network(20), range(4, 16)))
    (103, 90)
    """
    together, needed, kept = set(wires), set[int](), []
    for low, high in reversed(list(network)):
        if {low, high} <= together or not {low, high} & (together | needed):
            continue
        together -= {low, high}
        needed |= {low, high}
        kept.append((low, high))
    return kept[::-1]
