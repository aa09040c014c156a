"""No rule needs a second matrix, but for those that remember every client's past updates."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MORE = {"fldetector": 1.5, "foolsgold": 4.5, "signguard": 0.5}
"""The sum of a client's updates (FoolsGold), the last one (FLDetector) and signs (SignGuard) are what these work on."""
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
        most = MORE.get(name, 0.25)
        assert share <= most, f"{name} needs {share:.2f} of the matrix on top of it"
