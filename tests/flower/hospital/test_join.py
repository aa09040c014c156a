"""What `join` keeps running is started again, unless that cannot help."""

import os
import sys
import time

import pytest

pytest.importorskip("flwr")

from wardround.errors import WardroundError
from wardround.flower.config import hospital_from
from wardround.flower.hospital import join as joining
from wardround.flower.hospital.join import Joiner, _Kept
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
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "LONGEST_WAIT", 0.01)
    said = []
    with Processes(tmp_path / "logs", dict(os.environ)) as processes:
        yield (
            lambda code: _Kept(
                "trainer",
                [sys.executable, "-c", CODE, str(tmp_path / "starts"), str(code)],
                processes,
                said.append,
            ),
            said,
        )


def hospital(tmp_path):
    values = {"name": "a", "dataset": {"name": "synthetic"}, "superlink": "fed.example.org:8000"}
    return Joiner(tmp_path / "hospital.yaml", hospital_from(values))


def look(process, why, until):
    deadline = time.monotonic() + 120
    while not until():
        process.look_after(why)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_trainer_that_dies_is_started_again(kept, tmp_path):
    start, said = kept
    starts = tmp_path / "starts"
    why = hospital(tmp_path)._why_hopeless
    look(start(1), why, lambda: starts.exists() and len(starts.read_text()) >= 3)
    assert said[0] == "the trainer ended (out of memory); started again in 0.01 s"


def test_a_mistake_of_the_user_is_told_once(kept, tmp_path):
    start, _ = kept
    with pytest.raises(WardroundError, match=r"^out of memory$"):
        look(start(2), hospital(tmp_path)._why_hopeless, lambda: False)
    assert (tmp_path / "starts").read_text() == "x"


def test_a_key_that_the_server_does_not_know_is_hopeless(tmp_path):
    words = "Failed to connect.\n[code: 412] this key is not registered with the federation\n\nFor more"
    assert "does not know this hospital's key" in hospital(tmp_path)._why_hopeless("supernode", 1, words)
    assert (
        hospital(tmp_path)._why_hopeless("supernode", 1, "[code: 305] Failed to activate SuperNode.") is None
    )


def test_two_logs_of_one_name_are_not_mixed_up(kept, tmp_path):
    """An error of an earlier start must not end a later one."""
    start, _ = kept
    (tmp_path / "logs" / "trainer.log").write_text("this key is not registered with the federation\n")
    process = start(1)
    seen = []
    deadline = time.monotonic() + 120
    while not seen and time.monotonic() < deadline:
        process.look_after(lambda name, code, words: seen.append(words))
        time.sleep(0.02)
    assert seen == ["out of memory\n"]
