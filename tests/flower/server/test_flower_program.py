"""Flower's programs run under a calmer garbage collector."""

import gc
import subprocess
import sys

import pytest

from wardround.flower.processes import console_script
from wardround.flower.server import flower_program

MODULE = "wardround.flower.server.flower_program"


@pytest.fixture
def collector():
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_the_program_runs_with_its_arguments_after_the_collector_is_set(monkeypatch, collector):
    seen = []

    class Program:
        def load(self):
            seen.append(gc.get_freeze_count())
            return lambda: (
                seen.append((list(sys.argv), gc.get_freeze_count() > 0, gc.get_threshold()[0])) or 4
            )

    def find(group, name):
        assert (group, name) == ("console_scripts", "flower-superlink")
        return [Program()]

    monkeypatch.setattr(flower_program, "entry_points", find)
    monkeypatch.setattr(sys, "argv", ["before"])
    assert flower_program.main(["flower-superlink", "--port", "1"]) == 4
    assert seen == [0, (["flower-superlink", "--port", "1"], True, flower_program.NEW_OBJECTS)]


def test_it_is_flowers_own_program():
    commands = [[sys.executable, "-m", MODULE, "flower-superlink"], [console_script("flower-superlink")]]
    texts = [
        subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert texts[0] == texts[1] != ""
