"""What a run costs in memory, in a process that runs several."""

import sys

import numpy as np
import pytest

from wardround.federation.schedule import forget_peak_memory, peak_memory_mb


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
