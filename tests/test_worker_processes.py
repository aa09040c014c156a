"""Worker processes: what they have imported when they start, and from where."""

import subprocess
import sys
from pathlib import Path

import pytest

from wardround import worker_processes

SCRIPT = """
import sys
from wardround.worker_processes import start_early, worker_context

def names():
    return sorted({"tabnanny", "this_is_no_module", "colorsys"} & set(sys.modules))

if __name__ == "__main__":
    start_early(["tabnanny", "this_is_no_module"])
    context = worker_context(["colorsys"])  # too late: the server runs
    with context.Pool(1) as pool:
        print(context.get_start_method(), pool.apply(names), names())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork server there")
def test_workers_have_what_the_early_server_imported_and_the_caller_has_not(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(worker_processes.__file__).parents[1]))
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == "forkserver ['tabnanny'] []\n"


def test_without_a_fork_server_workers_are_new_processes(monkeypatch):
    monkeypatch.setattr(worker_processes.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.setattr(worker_processes.forkserver, "ensure_running", lambda: pytest.fail("there is none"))
    worker_processes.start_early(worker_processes.EXPERIMENTS)
    assert worker_processes.worker_context(worker_processes.ANALYSIS).get_start_method() == "spawn"


def test_a_single_core_starts_nothing_early(monkeypatch):
    monkeypatch.setattr(worker_processes.os, "cpu_count", lambda: 1)
    monkeypatch.setattr(
        worker_processes.forkserver, "ensure_running", lambda: pytest.fail("it would compete")
    )
    worker_processes.start_early(worker_processes.EXPERIMENTS)
