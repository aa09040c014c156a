"""What a run costs in memory, in a process that runs several."""

import platform
import sys

import numpy as np
import pytest

from wardround.federation.schedule import forget_peak_memory, peak_memory_mb


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can forget a peak")
def test_a_run_is_not_charged_for_the_one_before():
    forget_peak_memory()
    before = peak_memory_mb()
    large = np.ones(60_000_000)  # 480 MB
    during = peak_memory_mb()
    assert during > before + 400
    del large
    assert peak_memory_mb() >= during - 50, "a peak stays while the run lasts"
    forget_peak_memory()
    assert peak_memory_mb() < during - 300


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can forget a peak")
def test_what_the_allocator_keeps_of_the_run_before_is_not_charged_either():
    """Small blocks below one that is still in use: free, and yet the process's until it gives them back."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this C library has its own ways")
    blocks = [
        np.ones(8_000) for _ in range(4_000)
    ]  # 256 MB in blocks that the allocator does not map one by one
    during = peak_memory_mb()
    del blocks[:-1]
    forget_peak_memory()
    assert peak_memory_mb() < during - 150
