"""The server: streams over real connections, and the command line."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading

import httpx
import pytest
import uvicorn

from wardround.errors import ConfigError, MissingExtra
from wardround.live.access import Access
from wardround.live.application import LivePage
from wardround.live.server import watch

pytest.importorskip("starlette", reason="starlette is not installed (extra 'live')")


TOKEN = "correct horse battery staple"


PATIENCE = 90.0


@pytest.fixture
def server(wait_for, tmp_path):
    """A real server with real connections, for streams."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    page = LivePage([tmp_path], Access("127.0.0.1", None), port)
    real = uvicorn.Server(uvicorn.Config(page.app, log_level="error", ws="none"))
    thread = threading.Thread(target=real.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_for(lambda: real.started)
    yield f"http://127.0.0.1:{port}"
    page.hub.close()
    real.should_exit = True
    thread.join(PATIENCE)
    listener.close()
    assert not thread.is_alive(), "open streams must not keep the server from ending"


def messages(response):
    """(id, event, data) of a stream, as they come."""
    message = {}
    for line in response.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            message[name] = value
        elif message:
            if "event" in message:
                yield message["id"], message["event"], json.loads(message["data"])
            message = {}


@pytest.mark.slow
def test_a_stream_sends_what_happens_and_continues_after_a_break(wait_for, server, growing):
    run = growing().add(2)
    name = wait_for(lambda: httpx.get(f"{server}/api/runs").json())[0]["id"]
    with httpx.stream("GET", f"{server}/events", params={"run": name}, timeout=PATIENCE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = messages(response)
        while True:
            place, event, _ = next(stream)
            if event == "clients":
                break
        slow = httpx.Client(timeout=PATIENCE)  # opens a stream and never reads it
        with slow.stream("GET", f"{server}/events", params={"run": name}):
            run.add()
            while True:
                later, event, data = next(stream)
                if event == "log" and any(record["kind"] == "cells" for record in data["entries"]):
                    break
            assert [r["round"] for r in data["entries"] if r["kind"] == "cells"] == [3]
            assert not data["reset"]
        slow.close()
    assert later != place
    headers = {"last-event-id": place}
    with httpx.stream(
        "GET", f"{server}/events", params={"run": name}, headers=headers, timeout=PATIENCE
    ) as r:
        received = []
        for _, event, data in messages(r):
            if event == "log":
                received += data["entries"]
            if event == "clients":
                break
    assert [record["round"] for record in received if record["kind"] == "cells"] == [3]


def test_mistakes_of_the_command_line(tmp_path):
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ConfigError, match="in use"):
        watch([], "127.0.0.1", taken.getsockname()[1], None)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0.*--token"):
        watch([], "0.0.0.0", 0, None)
    with pytest.raises(ConfigError, match="--token: is empty"):
        watch([], "127.0.0.1", 0, " ")
    with pytest.raises(ConfigError, match="cannot listen"):
        watch([], "192.0.2.1", 0, TOKEN, insecure=True)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0.*unencrypted.*--certificate"):
        watch([], "0.0.0.0", 0, TOKEN)
    with pytest.raises(ConfigError, match="--certificate-key: give the --certificate"):
        watch([], "127.0.0.1", 0, None, certificate_key=tmp_path / "server.key")
    with pytest.raises(ConfigError, match="not a certificate with its key"):
        watch([], "127.0.0.1", 0, None, certificate=tmp_path / "missing.pem")


@pytest.mark.slow
def test_with_a_certificate_it_speaks_tls_to_other_machines(tmp_path):
    certificates = pytest.importorskip("wardround.flower.certificates", reason="no extra 'flower'")
    files = certificates.KeyFiles(tmp_path / "certs")
    certificates.make_server_certificate(files.folder, ["127.0.0.1"])
    command = [sys.executable, "-m", "wardround", "watch", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]
    command += ["--certificate", str(files.server), "--certificate-key", str(files.server_key)]
    environment = {**os.environ, "WARDROUND_WATCH_TOKEN": TOKEN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        url = line.split(": ", 1)[1].split()[0].split("?")[0]
        assert url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(files.authority))
        with httpx.Client(verify=trusted, timeout=PATIENCE) as client:
            assert client.get(url).status_code == 401
            origin = {"origin": url.rstrip("/")}
            entered = client.post(f"{url}login", data={"token": TOKEN}, headers=origin)
            assert entered.status_code == 303
            assert "Secure" in entered.headers["set-cookie"]
            # Nobody chooses the source that its wrong tokens are counted for.
            tries = [
                client.get(
                    f"{url}api/runs",
                    headers={"authorization": "Bearer x", "x-forwarded-for": f"192.0.2.{number}"},
                )
                for number in range(7)
            ]
            assert [answer.status_code for answer in tries] == [401] * 6 + [429]
    finally:
        process.terminate()
        printed, _ = process.communicate()
    assert "NOT ENCRYPTED" not in printed


def test_the_missing_extra_names_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    with pytest.raises(MissingExtra, match=r"pip install 'wardround\[live\]'"):
        watch([], "127.0.0.1", 0, None)


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_cleanly(wait_for, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "wardround", "watch", str(tmp_path / "later"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        line = process.stdout.readline()
        url = line.split(": ", 1)[1].split()[0]
        answered = wait_for(lambda: httpx.get(url, timeout=PATIENCE))
        assert answered.status_code == 200
        with httpx.stream("GET", f"{url}events", timeout=PATIENCE) as response:
            next(response.iter_lines())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with taken:
        result = subprocess.run(
            [sys.executable, "-m", "wardround", "watch", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
        )
    assert result.returncode == 2
    assert result.stderr.startswith(f"wardround: --port {port}: is in use")
    assert len(result.stderr.splitlines()) == 1
