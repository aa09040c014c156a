import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround.aggregators._math.columns import MOST_RANGES, column_ranges, for_each_range


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@given(st.integers(0, 10**10))
def test_ranges_cover_the_columns_once_and_are_few(columns):
    ranges = column_ranges(columns)
    assert len(ranges) <= MOST_RANGES
    assert [a for a, _ in ranges] == [0, *(b for _, b in ranges[:-1])][: len(ranges)]
    assert (ranges[-1][1] if ranges else 0) == columns


def test_every_range_is_worked_on_once_by_several_threads(four_threads):
    seen, workers, together = [], set(), threading.Barrier(4)

    def work(part, start, stop):
        if part < 4:
            together.wait(timeout=30)  # only passes if four threads are in here at the same time
        workers.add(threading.get_ident())
        seen.append((part, start, stop))

    for_each_range(1_000_000, work)
    assert sorted(seen) == [(i, *r) for i, r in enumerate(column_ranges(1_000_000))]
    assert len(workers) == 4


@pytest.mark.parametrize("broken", [0, 17])
def test_a_failure_in_any_thread_reaches_the_caller(four_threads, broken):
    def work(part, start, stop):
        if part == broken:
            raise ZeroDivisionError("from within")

    with pytest.raises(ZeroDivisionError, match="from within"):
        for_each_range(1_000_000, work)
