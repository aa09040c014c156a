"""`join` restarts its processes when they end, unless that cannot help."""

import os
import sys
import time

import pytest

pytest.importorskip("flwr")

from wardround.errors import WardroundError
from wardround.flower.config import hospital_from
from wardround.flower.hospital import join
from wardround.flower.hospital.join import Joiner, _Supervised
from wardround.flower.processes import Processes

CODE = """
import sys
from pathlib import Path

path = Path(sys.argv[1])
path.write_text(path.read_text() + "x" if path.exists() else "x")
print("out of memory", file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    monkeypatch.setattr(join, "MAX_RESTART_SECONDS", 0.01)
    echoed = []
    with Processes(tmp_path / "logs", dict(os.environ)) as processes:
        yield (
            lambda code: _Supervised(
                "trainer",
                [sys.executable, "-c", CODE, str(tmp_path / "starts"), str(code)],
                processes,
                echoed.append,
            ),
            echoed,
        )


def hospital(tmp_path):
    values = {"name": "a", "dataset": {"name": "synthetic"}, "superlink": "fed.example.org:8000"}
    return Joiner(tmp_path / "hospital.yaml", hospital_from(values))


def supervise(process, fatal_reason, until):
    deadline = time.monotonic() + 120
    while not until():
        process.restart_if_ended(fatal_reason)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_trainer_that_dies_is_started_again(supervised, tmp_path):
    start, echoed = supervised
    starts = tmp_path / "starts"
    supervise(
        start(1), hospital(tmp_path)._fatal_reason, lambda: starts.exists() and len(starts.read_text()) >= 3
    )
    assert echoed[0] == "the trainer ended (out of memory); started again in 0.01 s"


def test_a_mistake_of_the_user_is_reported_once(supervised, tmp_path):
    start, _ = supervised
    with pytest.raises(WardroundError, match=r"^out of memory$"):
        supervise(start(2), hospital(tmp_path)._fatal_reason, lambda: False)
    assert (tmp_path / "starts").read_text() == "x"


def test_a_key_that_the_server_does_not_know_is_fatal(tmp_path):
    output = "Failed to connect.\n[code: 412] this key is not registered with the federation\n\nFor more"
    assert "does not know this hospital's key" in hospital(tmp_path)._fatal_reason("supernode", 1, output)
    assert (
        hospital(tmp_path)._fatal_reason("supernode", 1, "[code: 305] Failed to activate SuperNode.") is None
    )


def test_errors_of_an_earlier_start_are_ignored(supervised, tmp_path):
    """An error of an earlier start must not end a later one."""
    start, _ = supervised
    (tmp_path / "logs" / "trainer.log").write_text("this key is not registered with the federation\n")
    process = start(1)
    outputs = []
    deadline = time.monotonic() + 120
    while not outputs and time.monotonic() < deadline:
        process.restart_if_ended(lambda name, code, output: outputs.append(output))
        time.sleep(0.02)
    assert outputs == ["out of memory\n"]
