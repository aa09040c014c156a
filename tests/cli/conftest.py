"""The command line as a process and inside this one, and a configuration to give it."""

import subprocess
import sys

import pytest
import yaml

from wardround.cli.main import main


@pytest.fixture
def wardround():
    """Call the command line in a process of its own."""

    def call(*arguments, cwd=None):
        return subprocess.run(
            [sys.executable, "-m", "wardround", *map(str, arguments)], capture_output=True, text=True, cwd=cwd
        )

    return call


@pytest.fixture
def here(monkeypatch, capsys):
    """The same without a new process, where only the output matters."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["wardround", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, out, err)

    return call


@pytest.fixture
def config(tiny, tmp_path):
    """The file of a small experiment."""
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**tiny, "rounds": 4}))
    return path
