"""No rule needs a second matrix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_rules.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to reset the peak")
def test_peak_memory_beyond_the_matrix_is_at_most_a_quarter_of_it():
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--memory", "--json", "--dimension", "5000000", "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for name, share in json.loads(done.stdout).items():
        assert share <= 0.25, f"{name} needs {share:.2f} of the matrix on top of it"
