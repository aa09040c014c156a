"""The trainer daemon: bytes in, bytes out, and only its owner may ask."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from wardround.errors import WardroundError
from wardround.flower.hospital.trainer_daemon import TrainerDaemon, ask


@pytest.fixture
def serve(tmp_path):
    def start(answer):
        daemon = TrainerDaemon(tmp_path / "trainer", answer)
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        return daemon.path

    return start


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_blobs_of_any_size_come_back(serve, size):
    content = os.urandom(size)
    assert ask(serve(lambda request: request[::-1]), content) == content[::-1]


def test_only_its_owner_may_open_it(serve):
    assert stat.S_IMODE(serve(bytes).stat().st_mode) == 0o600


def test_a_failure_costs_one_request(serve):
    def answer(request):
        if request == b"user":
            raise WardroundError("the weights do not fit")
        if request == b"defect":
            raise KeyError("oops")
        return b"fine"

    path = serve(answer)
    with pytest.raises(WardroundError, match="the weights do not fit"):
        ask(path, b"user")
    with pytest.raises(WardroundError, match=r"^KeyError, see the hospital's log$") as defect:
        ask(path, b"defect")
    assert "oops" not in str(defect.value)  # what it was about goes no further: the reply leaves the hospital
    assert ask(path, b"") == b"fine"


def test_a_trainer_that_is_not_there(tmp_path):
    with pytest.raises(WardroundError, match="is not there"):
        ask(tmp_path / "trainer", b"", patience=0.0)


def test_a_stranger_that_hangs_up_does_no_harm(serve):
    import socket

    path = serve(bytes)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        stranger.sendall(b"\xff" * 8)  # more than any message
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))
        stranger.sendall(b"\x05\0\0\0\0\0\0\0ab")
    assert ask(path, b"x") == b"x"


CODE = """
import sys, time
from pathlib import Path
from wardround.flower.hospital.trainer_daemon import TrainerDaemon

def answer(request):
    print("asked", flush=True)
    if request == b"sleep":
        time.sleep(600)
    return request

TrainerDaemon(Path(sys.argv[1]), answer).serve_forever()
"""


def test_one_that_is_killed_at_work_and_started_anew(tmp_path):
    path = tmp_path / "trainer"
    command = [sys.executable, "-c", CODE, str(path)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        errors: list[str] = []

        def wait():
            try:
                ask(path, b"sleep")
            except WardroundError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        assert trainer.stdout.readline() == b"asked\n"
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        thread.join(60)
        assert errors == ["the hospital's trainer ended in the middle of its work"]
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert ask(path, b"again") == b"again"  # waits until it listens
    finally:
        trainer.kill()
        trainer.wait()


def test_an_idle_daemon_gives_up_what_it_can_build_anew(tmp_path):
    """Once for each time that it has become idle, and it answers as before."""
    idle, calls = threading.Event(), []
    daemon = TrainerDaemon(tmp_path / "trainer", bytes.upper, lambda: (calls.append(1), idle.set()), 0.05)
    threading.Thread(target=daemon.serve_forever, daemon=True).start()
    for number in (1, 2):
        assert idle.wait(60)
        assert len(calls) == number
        idle.clear()
        assert ask(tmp_path / "trainer", b"train") == b"TRAIN"
