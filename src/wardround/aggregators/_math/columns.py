"""Work on the columns of a wide matrix in fixed ranges, on as many threads as torch may use.

The ranges depend on nothing but the number of columns, and every range writes to a place of its own, so
results are the same bits on one thread and on many.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import torch

__all__ = ["RANGE", "column_ranges", "for_each", "for_each_range"]

RANGE = 32_768
"""Columns of a range: enough work to be worth handing out, few enough to share evenly."""
MOST_RANGES = 256
"""A bound on the partial sums that are kept, however large the model."""


def column_ranges(columns: int) -> list[tuple[int, int]]:
    """The fixed ranges that cover the columns.

    >>> column_ranges(70_000)
    [(0, 32768), (32768, 65536), (65536, 70000)]
    """
    width = RANGE * max(1, -(-columns // (RANGE * MOST_RANGES)))
    return [(start, min(start + width, columns)) for start in range(0, columns, width)]


def for_each_range(columns: int, work: Callable[[int, int, int], None]) -> None:
    """Call `work(number, start, stop)` for every range of `column_ranges(columns)`, several at a time."""
    ranges = column_ranges(columns)
    for_each(range(len(ranges)), lambda number: work(number, *ranges[number]))


def for_each(numbers: Sequence[int], work: Callable[[int], None]) -> None:
    """Call `work` for every number, several at a time. It must release the GIL to gain from threads.

    Threads live for one call only: a start costs some microseconds, and a process that forks (a pool of
    experiments) never inherits a pool of dead ones.
    """
    helpers = min(torch.get_num_threads(), len(numbers)) - 1
    if helpers <= 0:
        for item in numbers:
            work(item)
        return
    todo, lock = iter(numbers), threading.Lock()
    failures: list[BaseException] = []

    def items() -> Iterator[int]:
        while True:
            with lock:
                item = None if failures else next(todo, None)
            if item is None:
                return
            yield item

    def drain() -> None:
        try:
            for item in items():
                work(item)
        except BaseException as failure:  # handed to the caller's thread below
            failures.append(failure)

    threads = [threading.Thread(target=drain) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    drain()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
