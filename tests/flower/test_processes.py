"""Child processes: none outlives its parent, and nobody else's are touched."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from wardround.errors import WardroundError
from wardround.flower import processes as module
from wardround.flower.processes import Processes, one_at_a_time

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


def test_one_at_a_time(tmp_path):
    with (
        one_at_a_time(tmp_path / "state", "this federation"),
        pytest.raises(WardroundError, match="this federation is running already"),
        one_at_a_time(tmp_path / "state", "this federation"),
    ):
        raise AssertionError("two at a time")


PARENT = """
import subprocess, sys, time
from pathlib import Path
from wardround.flower.processes import Processes

folder = Path(sys.argv[1])
child = [sys.executable, "-c", "import time; time.sleep(600)", str(folder)]
detached = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(600)"
with Processes(folder, {}) as processes:
    processes.start("child", child)
    processes.start("forker", [sys.executable, "-c", detached, *child])
    time.sleep(600)
"""


def pids_of(folder):
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(folder)) in command:
            pids.append(int(pid))
    return pids


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_its_parent(tmp_path, number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # also in the background
    )
    try:
        wait_until(lambda: len(pids_of(tmp_path)) == 4)  # parent, child, forker, the forker's detached child
        parent.send_signal(number)
        parent.wait(120)
        if (
            number == signal.SIGKILL
        ):  # the kernel ends its children, and the orphan reaper what these had started
            wait_until(lambda: not pids_of(tmp_path))
        else:
            assert pids_of(tmp_path) == []
    finally:
        parent.kill()
        parent.wait()
        for pid in pids_of(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_ended_is_named_with_its_last_words(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("superlink", [sys.executable, "-c", "raise SystemExit('no such database')"])
        with pytest.raises(WardroundError, match=r"superlink ended with code 1: no such database"):
            wait_until(lambda: processes.check())


@pytest.fixture
def bystander():
    """Start processes that `Processes` knows nothing of, as another test in this process may."""
    started = []

    def start(command):
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_stop_ends_only_what_it_started(tmp_path, bystander):
    sleeping = bystander(SLEEP)
    failed = bystander([sys.executable, "-c", "raise SystemExit(3)"])
    with Processes(tmp_path, dict(os.environ)) as processes:
        child = processes.start("child", SLEEP)
    assert child.returncode == -signal.SIGTERM
    assert sleeping.poll() is None
    assert failed.wait(60) == 3, "its exit code was not collected by somebody else"


@pytest.mark.slow
def test_stop_does_not_wait_for_others_that_ignore_sigterm(tmp_path, bystander, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 120.0)  # more than stopping takes on any machine
    assert bystander(STUBBORN).stdout.readline() == b"ready\n"
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("child", SLEEP)
        begin = time.monotonic()
    assert time.monotonic() - begin < 120


@pytest.mark.slow
def test_a_process_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    with Processes(tmp_path, dict(os.environ)) as processes:
        child = processes.start("child", STUBBORN)
        wait_until(lambda: "ready" in processes.log_tail("child"))
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_what_a_child_left_behind_is_ended_and_collected(tmp_path):
    """The child ends at once, its own child sleeps on."""
    leave = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("forker", [sys.executable, "-c", leave, *SLEEP, str(tmp_path)]).wait(60)
        (orphan,) = pids_of(tmp_path)
    assert not Path(f"/proc/{orphan}").exists()


@pytest.mark.slow
def test_a_descendant_that_has_erased_its_environment_is_ended_too(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    forker = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], env={}); time.sleep(600)"
    with Processes(tmp_path, dict(os.environ)) as processes:
        parent = processes.start("forker", [sys.executable, "-c", forker, *STUBBORN, str(tmp_path)])
        wait_until(lambda: "ready" in processes.log_tail("forker"))
        (grandchild,) = set(pids_of(tmp_path)) - {parent.pid}
    assert not Path(f"/proc/{grandchild}").exists()


def test_signal_handlers_are_restored(tmp_path):
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    own = {number: signal.getsignal(number) for number in numbers}
    try:
        with Processes(tmp_path, {}):
            assert signal.getsignal(signal.SIGTERM) is not own[signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in numbers} == own
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_elsewhere_than_on_linux_it_says_so_when_used(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(WardroundError, match="need Linux; this is darwin"), Processes(tmp_path, {}):
        raise AssertionError("started")
    with pytest.raises(WardroundError, match="need Linux"), one_at_a_time(tmp_path, "this federation"):
        raise AssertionError("locked")


@pytest.mark.slow
def test_modules_import_where_there_is_no_linux(tmp_path):
    """What Windows lacks is missed when it is used, not when a module is imported."""
    pytest.importorskip("flwr")
    code = """
        import sys, socket
        sys.modules["fcntl"] = sys.modules["resource"] = None
        del socket.AF_UNIX
        import importlib, pkgutil
        import wardround.flower as package
        for module in pkgutil.walk_packages(package.__path__, "wardround.flower."):
            importlib.import_module(module.name)
        import wardround.cli.flower
        from wardround.errors import WardroundError
        from wardround.flower.hospital.trainer_daemon import TrainerDaemon
        from wardround.flower.processes import one_at_a_time
        from pathlib import Path
        try:
            TrainerDaemon(Path(sys.argv[1]) / "trainer", bytes)
        except WardroundError as error:
            print(error)
        try:
            with one_at_a_time(Path(sys.argv[1]), "this federation"):
                pass
        except WardroundError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    first, second = output.stdout.splitlines()
    assert first == f"a hospital's trainer needs Unix sockets; {sys.platform} has none"
    assert second.startswith("locks between processes need Linux")


def test_a_state_folder_is_its_owners_alone(open_umask, mode_of, tmp_path):
    with one_at_a_time(tmp_path / "state", "this federation"):
        assert mode_of(tmp_path / "state") == 0o700
    with Processes(tmp_path / "logs", {}):
        assert mode_of(tmp_path / "logs") == 0o700


WRITER = [
    sys.executable,
    "-c",
    "import sys\nfor line in open(sys.argv[1]): print(line.strip(), flush=True)",
]


@pytest.mark.slow
def test_a_log_that_its_process_keeps_open_is_rotated(tmp_path):
    """It is copied and emptied: the process goes on writing to the same file, from its beginning."""
    os.mkfifo(tmp_path / "words")
    with Processes(tmp_path / "logs", dict(os.environ)) as processes:
        processes.start("child", [*WRITER, str(tmp_path / "words")])
        log, older = processes.log("child"), tmp_path / "logs" / "child.log.1"

        def said(text):
            deadline = time.monotonic() + 60
            while not (log.exists() and text in log.read_text()):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        with open(tmp_path / "words", "w", buffering=1) as words:
            words.write("first words\n")
            said("first words\n")
            processes.rotate_logs(largest=5)
            assert (older.read_text(), log.read_text()) == ("first words\n", "")
            words.write("second\n")
            said("second\n")
            assert log.read_text() == "second\n"
            processes.rotate_logs(largest=5)
            assert log.read_text() == "second\n", "not all the time"
    assert older.stat().st_mode & 0o777 == log.stat().st_mode & 0o777
