"""The steward over a connection and as a process: the same answers, the same refusals, a log on disk."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

from wardround.errors import ConfigError, WardroundError
from wardround.experiments import load_config, run
from wardround.privacy.encryption.ckks import CkksPublic
from wardround.privacy.encryption.pads import pad_for, tag_for
from wardround.privacy.encryption.refusals import Refused
from wardround.privacy.encryption.remote_steward import RemoteSteward
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Deposit
from wardround.privacy.encryption.steward_service import StewardService
from wardround.privacy.encryption.vault import Vault, client_keys, server_key
from wardround.privacy.encryption.wire import NotAuthentic, pack_message, signed_headers

CLIENTS = ("hospital-0", "Ste. Ann/2", "hospital-2")
THIRDS = dict.fromkeys(CLIENTS, 0.25)


@pytest.fixture(scope="module")
def vault(tmp_path_factory):
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault = Vault(tmp_path_factory.mktemp("steward") / "vault")
    vault.make(CLIENTS, PADDED_SUMS)
    return vault


@contextmanager
def served(vault):
    with StewardService(vault.steward(), server_key(vault.keys)) as service:
        thread = threading.Thread(target=service.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def service(vault):
    with served(vault) as service:
        yield service


@pytest.fixture
def remote(vault, service):
    return RemoteSteward(service.address, server_key(vault.keys), timeout=30)


@pytest.fixture
def public(remote):
    return CkksPublic(remote.public_context()[1])


def padded_sum(vault, public, session, updates, round=1):
    keys = client_keys(vault.keys, PADDED_SUMS)
    return public.combine(
        (public.encrypt(updates[c], pad_for(keys[c], session, round)), THIRDS[c]) for c in CLIENTS
    )


def updates_of(dimension):
    rng = np.random.default_rng(0)
    return {client: rng.normal(size=dimension) for client in CLIENTS}


def test_a_sum_over_a_connection(vault, remote, public):
    updates, session = updates_of(10), remote.begin()
    got = remote.open_padded_sum(session, 1, THIRDS, padded_sum(vault, public, session, updates))
    assert got == pytest.approx(sum(0.25 * update for update in updates.values()), abs=1e-4)


def test_scalars_and_their_sum_over_a_connection(tmp_path):
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault, updates = Vault(tmp_path), updates_of(10)
    vault.make(CLIENTS, DEPOSITS)
    keys, deposits = client_keys(vault.keys, DEPOSITS), {}
    with served(vault) as service:
        remote = RemoteSteward(service.address, server_key(vault.keys), timeout=30)
        public, session = CkksPublic(remote.public_context()[1]), remote.begin()
        for client in CLIENTS:
            ciphertext = public.encrypt(updates[client], None)
            deposits[client] = Deposit(ciphertext, tag_for(keys[client], session, 2, client, ciphertext))
        measured = remote.measure(session, 2, deposits)
        for client, update in updates.items():
            assert measured[client].norm == pytest.approx(np.linalg.norm(update), rel=1e-4)
        got = remote.open_measured_sum(session, 2, THIRDS)
    assert got == pytest.approx(sum(0.25 * update for update in updates.values()), abs=1e-4)


def test_a_clients_key_says_what_it_is_for(vault):
    with pytest.raises(ConfigError, match="a key for mode encrypted-fedmed, not for encrypted-caac"):
        client_keys(vault.keys, DEPOSITS)


def test_refusals_travel_and_are_logged(vault, remote, public):
    session = remote.begin()
    ciphertext = public.encrypt(np.ones(3), None)
    with pytest.raises(Refused, match="cohort of 1"):
        remote.open_padded_sum(session, 1, {CLIENTS[0]: 1.0}, ciphertext)
    last = json.loads(vault.log_path.read_text().splitlines()[-1])
    assert "cohort of 1" in last["refused"]
    assert CLIENTS[0] not in json.dumps(last), "the log has pseudonyms"


def test_a_request_made_again_is_refused(vault, service):
    body = pack_message({"after": None})
    headers = signed_headers(server_key(vault.keys), "/begin", body)
    request = urllib.request.Request(service.address + "/begin", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 401
    assert b"replay" in refused.value.read()


def test_strangers_are_not_answered(service):
    with pytest.raises(NotAuthentic):
        RemoteSteward(service.address, b"wrong key" * 4, timeout=10).begin()
    request = urllib.request.Request(service.address + "/begin", b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 401


def test_requests_that_make_no_sense_get_an_answer(vault, service, remote):
    key = server_key(vault.keys)
    for path, body in (
        ("/nonsense", pack_message({})),
        ("/sum", pack_message({})),
        ("/sum", pack_message({"session": "x", "round": 1, "coefficients": {}})),
        ("/sum", b"no message"),
        ("/measure", pack_message({"session": "x", "round": 1, "clients": ["a"], "tags": ["zz"]}, [b""])),
    ):
        request = urllib.request.Request(
            service.address + path, body, signed_headers(key, path, body), method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(request, timeout=10)
        assert answer.value.code == 400
    assert remote.begin()


def test_an_answer_that_is_not_the_stewards_is_not_believed(vault):
    class Impostor:
        def __init__(self):
            self.socket = socket.create_server(("127.0.0.1", 0))

        def __call__(self):
            connection, _ = self.socket.accept()
            connection.recv(65536)
            body = pack_message({"session": "mine"})
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            connection.close()

    impostor = Impostor()
    threading.Thread(target=impostor, daemon=True).start()
    address = f"http://127.0.0.1:{impostor.socket.getsockname()[1]}"
    with pytest.raises(NotAuthentic, match="not signed with the steward's key"):
        RemoteSteward(address, server_key(vault.keys), timeout=10).begin()


def test_no_steward_is_an_error_in_one_line():
    with pytest.raises(WardroundError, match="cannot be reached"):
        RemoteSteward("http://127.0.0.1:9", b"key", timeout=2).begin()
    with pytest.raises(ConfigError, match="is no address"):
        RemoteSteward("localhost", b"key")


def test_without_tls_it_listens_on_loopback_only(vault):
    with pytest.raises(ConfigError, match="not loopback"):
        StewardService(vault.steward(), b"key", host="0.0.0.0")


def test_keys_are_for_their_owner_only_and_never_replaced(vault):
    for path in vault.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.suffix == ".npy", path
    with pytest.raises(ConfigError, match="not replaced"):
        vault.make(CLIENTS, PADDED_SUMS)
    with pytest.raises(ConfigError, match="no steward's folder"):
        Vault(vault.folder / "other").steward()


def test_a_steward_that_comes_back_remembers_what_it_opened(vault, remote, public):
    session = remote.begin()
    updates = {client: np.ones(4) for client in CLIENTS}
    remote.open_padded_sum(session, 3, THIRDS, padded_sum(vault, public, session, updates, 3))
    again = vault.steward()
    assert again.sessions[session].last_sum == pytest.approx(0.75 * np.ones(4), abs=1e-3)
    for round, reason in ((2, "a replay"), (3, "two sums can be subtracted")):
        with pytest.raises(Refused, match=reason):
            again.open_padded_sum(session, round, THIRDS, b"")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "rule"), [(PADDED_SUMS, "fedmed"), (DEPOSITS, "caac")])
def test_a_run_with_a_steward_process(tmp_path, mode, rule):
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    code = (
        "import typer; from wardround.cli.privacy import mount; app = typer.Typer();"
        "app.callback()(lambda: None); mount(app); app()"
    )
    folder = tmp_path / "steward"
    options = ["--clients", "6", "--port", "0", "--mode", mode]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "steward", str(folder), *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    config = {
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6},
        "model": {"name": "mlp", "hidden": [8]},
        "aggregator": {"name": rule},
        "rounds": 3,
    }
    try:
        address = re.search(r"http://[\d.:]+", process.stdout.readline()).group()
        plain = run(load_config(config), tmp_path / "runs").summary()
        privacy = {"mode": mode, "steward": address, "steward_keys": str(folder / "keys")}
        checked = load_config({**config, "privacy": privacy})

        def stop(result):
            if result.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(checked, tmp_path / "runs", stop)
        hidden = run(checked, tmp_path / "runs")  # goes on, in a new session
    finally:
        process.terminate()
        process.wait()
    assert hidden.summary().final["loss"] == pytest.approx(plain.final["loss"], abs=1e-3)
    assert hidden.summary().skipped_rounds == 0
    lines = [json.loads(line) for line in (folder / "openings.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds.count("sum") == 3
    assert kinds.count("scalars") == (3 if mode == DEPOSITS else 0)
    assert any(line.get("after") for line in lines if line["kind"] == "begin")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_over_tls_it_may_listen_anywhere(vault, tmp_path, monkeypatch):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=steward",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with StewardService(vault.steward(), server_key(vault.keys), "0.0.0.0", 0, certificate, key) as service:
        threading.Thread(target=service.serve_forever, args=[0.01], daemon=True).start()
        address = f"https://127.0.0.1:{service.server_address[1]}"
        remote = RemoteSteward(address, server_key(vault.keys), timeout=10)
        with pytest.raises(WardroundError, match=r"cannot be reached.*certificate"):
            remote.begin()  # nobody vouches for it
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert remote.begin()
        service.shutdown()
    with pytest.raises(ConfigError, match="not a certificate with its key"):
        StewardService(vault.steward(), b"key", certificate=key, certificate_key=key)
