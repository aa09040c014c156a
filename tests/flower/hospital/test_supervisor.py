"""A hospital's processes are restarted when they end, unless that cannot help."""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

pytest.importorskip("flwr")

from wardround.errors import WardroundError
from wardround.flower.certificates import KeyFiles, make_server_certificate
from wardround.flower.config import hospital_from
from wardround.flower.hospital import supervisor
from wardround.flower.hospital.join import Joiner
from wardround.flower.hospital.supervisor import Greeting, Plan, Supervised, Supervisor, greet
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
    monkeypatch.setattr(supervisor, "MAX_RESTART_SECONDS", 0.01)
    echoed = []
    with Processes(tmp_path / "logs", dict(os.environ)) as processes:
        yield (
            lambda code: Supervised(
                "trainer",
                [sys.executable, "-c", CODE, str(tmp_path / "starts"), str(code)],
                processes,
                echoed.append,
            ),
            echoed,
        )


def hospital(tmp_path):
    values = {"name": "a", "dataset": {"name": "synthetic"}, "superlink": "fed.example.org:8000"}
    return Supervisor(Joiner(tmp_path / "hospital.yaml", hospital_from(values)).plan(), print)


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
        start(1), hospital(tmp_path).fatal_reason, lambda: starts.exists() and len(starts.read_text()) >= 3
    )
    assert echoed[0] == "the trainer ended (out of memory); started again in 0.01 s"


def test_a_mistake_of_the_user_is_reported_once(supervised, tmp_path):
    start, _ = supervised
    with pytest.raises(WardroundError, match=r"^out of memory$"):
        supervise(start(2), hospital(tmp_path).fatal_reason, lambda: False)
    assert (tmp_path / "starts").read_text() == "x"


def test_a_key_that_the_server_does_not_know_is_fatal(tmp_path):
    output = "wardround: this key is not registered with the federation\n"
    assert "does not know this hospital's key" in hospital(tmp_path).fatal_reason("supernode", 1, output)
    assert hospital(tmp_path).fatal_reason("supernode", 1, "wardround: Failed to activate SuperNode.") is None


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


def test_a_plan_survives_the_command_line(tmp_path):
    plan = hospital(tmp_path).plan
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.superlink == "fed.example.org:8000"
    assert any(line.startswith("learning rate") for line in plan.policy)


def test_an_option_that_is_not_used_any_more_is_said(tmp_path):
    values = {"name": "a", "dataset": {"name": "synthetic"}, "runtime_port": 9094}
    plan = Joiner(tmp_path / "hospital.yaml", hospital_from(values)).plan()
    assert plan.notices == ("runtime_port is not needed any more: remove it from hospital.yaml",)


def test_the_supervisor_needs_next_to_no_memory():
    """Neither torch nor numpy nor flwr: it only sleeps."""
    code = "import sys, wardround.flower.hospital.supervisor; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "flwr", "pydantic"} & set(result.stdout.split())


@pytest.fixture
def web():
    """A server that answers each connection with these bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(content):
        def once():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(content)

        threading.Thread(target=once, daemon=True).start()
        return listener.getsockname()[1]

    yield answer
    listener.close()


def test_a_server_says_what_time_it_is(web):
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=90), usegmt=True).encode()
    hello = greet("127.0.0.1", web(b"HTTP/1.1 200 OK\r\nDate: " + past + b"\r\n\r\n"), None)
    assert hello.problem is None
    assert 89 < hello.ahead < 120
    assert greet("127.0.0.1", web(b"HTTP/1.1 200 OK\r\nDate: nonsense\r\n\r\n"), None) == Greeting()


@pytest.mark.parametrize(("ahead", "words"), [(90.0, "90 s ahead of"), (-400.0, "400 s behind"), (1.0, None)])
def test_a_wrong_clock_is_said_at_the_start(tmp_path, monkeypatch, ahead, words):
    echoed = []
    own = Supervisor(hospital(tmp_path).plan, echoed.append)
    monkeypatch.setattr(supervisor, "greet", lambda *args: Greeting(None, ahead))
    own._wait_for_server()
    assert bool(echoed) == (words is not None)
    assert words is None or words in echoed[0]


@pytest.mark.parametrize(("days", "words"), [(12.4, "expires in 12 days"), (31.0, None), (None, None)])
def test_a_servers_certificate_near_its_end_is_said_at_the_start(tmp_path, monkeypatch, days, words):
    echoed = []
    own = Supervisor(hospital(tmp_path).plan, echoed.append)
    monkeypatch.setattr(supervisor, "greet", lambda *args: Greeting(None, 0.0, days))
    own._wait_for_server()
    assert bool(echoed) == (words is not None)
    assert words is None or words in echoed[0]


def test_a_greeting_knows_how_long_the_certificate_holds(tmp_path, monkeypatch):
    make_server_certificate(tmp_path / "keys", ["127.0.0.1"])
    keys = KeyFiles(tmp_path / "keys")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server, keys.server_key)
    listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)

    def once():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    threading.Thread(target=once, daemon=True).start()
    with listener:
        hello = greet("127.0.0.1", listener.getsockname()[1], keys.authority)
    assert hello.problem is None
    assert 820 < hello.days_left < 826, "wardround's own last 825 days"


def test_a_server_that_is_away_is_waited_for_and_announced_once(tmp_path, monkeypatch):
    answers, echoed = [Greeting("Connection refused"), Greeting("Connection refused"), Greeting()], []
    monkeypatch.setattr(supervisor, "greet", lambda *args: answers.pop(0))
    monkeypatch.setattr(supervisor.time, "sleep", lambda seconds: None)
    Supervisor(hospital(tmp_path).plan, echoed.append)._wait_for_server()
    assert echoed == ["a: waiting for fed.example.org:8000 (Connection refused)"]


def test_tls_on_one_side_only_is_an_error(web):
    with pytest.raises(WardroundError, match="speaks TLS only"):
        greet("127.0.0.1", web(b"\x15\x03\x03\x00\x02\x02\x46"), None)


def test_the_words_of_a_process_whose_log_was_rotated_are_read(supervised, tmp_path):
    start, _ = supervised
    log = tmp_path / "logs" / "trainer.log"
    log.write_text("x" * 1000)
    process = start(1)
    process.process.wait(60)
    os.truncate(log, 0)  # as rotation does, and then it says its last words
    log.write_text("out of memory\n")
    outputs = []
    process.restart_if_ended(lambda name, code, output: outputs.append(output))
    assert outputs == ["out of memory\n"]
