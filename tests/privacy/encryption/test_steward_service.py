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
from fast_cases import slow_but

from wardround.errors import ConfigError, WardroundError
from wardround.experiments import load_config, run
from wardround.privacy.encryption.ckks import CkksPublic
from wardround.privacy.encryption.pads import pad_for, seal_for_steward
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.encryption.remote_steward import RemoteSteward
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS
from wardround.privacy.encryption.steward_service import StewardService
from wardround.privacy.encryption.vault import Vault, client_keys, server_key
from wardround.privacy.encryption.wire import NotAuthentic, pack_message, signed_headers


def order_of(round, other=False):
    """The name of a round's order: each round starts from another model."""
    return f"{round:032x}.{('f0' if other else '0f') * 32}"


CLIENTS = ("hospital-0", "Ste. Ann/2", "hospital-2")
QUARTERS = dict.fromkeys(CLIENTS, 0.25)
ORDER = order_of(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A steward's folder before its run; making its keys takes longer than a test."""
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault = Vault(tmp_path_factory.mktemp("steward") / "vault")
    vault.make(CLIENTS, PADDED_SUMS)
    return vault.folder


@pytest.fixture
def vault(made, tmp_path):
    """One steward per run: each test has its own copy."""
    return Vault(shutil.copytree(made, tmp_path / "vault"))


@contextmanager
def served(vault):
    with StewardService(vault.steward(), server_key(vault.keys)) as service:
        thread = threading.Thread(target=service.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


@pytest.fixture
def service(vault):
    with served(vault) as service:
        yield service


@pytest.fixture
def remote(vault, service):
    return RemoteSteward(service.address, server_key(vault.keys), timeout=30)


@pytest.fixture
def public(remote):
    return CkksPublic(remote.public_context()[1])


def padded_sum(vault, public, updates, round=1):
    keys = client_keys(vault.keys, PADDED_SUMS)
    return public.combine(
        (public.encrypt(updates[c], pad_for(keys[c], round, order_of(round))), QUARTERS[c]) for c in CLIENTS
    )


def updates_of(dimension):
    rng = np.random.default_rng(0)
    return {client: rng.normal(size=dimension) for client in CLIENTS}


def test_a_sum_over_a_connection(vault, remote, public):
    updates = updates_of(10)
    got = remote.open_padded_sum(1, ORDER, QUARTERS, padded_sum(vault, public, updates))
    assert got == pytest.approx(sum(0.25 * update for update in updates.values()), abs=1e-4)


@pytest.mark.slow
def test_scalars_and_their_sum_over_a_connection(tmp_path):
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault, updates = Vault(tmp_path), updates_of(10)
    vault.make(CLIENTS, DEPOSITS)
    keys, deposits = client_keys(vault.keys, DEPOSITS), {}
    with served(vault) as service:
        remote = RemoteSteward(service.address, server_key(vault.keys), timeout=30)
        public = CkksPublic(remote.public_context()[1])
        for client in CLIENTS:
            ciphertext = public.encrypt(updates[client], None)
            deposits[client] = seal_for_steward(keys[client], client, 2, ORDER, ciphertext)
        measured = remote.measure(2, ORDER, deposits)
        for client, update in updates.items():
            assert measured[client].norm == pytest.approx(np.linalg.norm(update), rel=1e-4)
        got = remote.open_measured_sum(2, ORDER, QUARTERS)
    assert got == pytest.approx(sum(0.25 * update for update in updates.values()), abs=1e-4)


def test_a_clients_key_says_what_it_is_for(vault):
    with pytest.raises(ConfigError, match="a key for mode encrypted-fedmed, not for encrypted-caac"):
        client_keys(vault.keys, DEPOSITS)


def test_refusals_travel_and_are_logged(vault, remote, public):
    ciphertext = public.encrypt(np.ones(3), None)
    with pytest.raises(Refused, match="cohort of 1"):
        remote.open_padded_sum(1, ORDER, {CLIENTS[0]: 1.0}, ciphertext)
    last = json.loads(vault.log_path.read_text().splitlines()[-1])
    assert "cohort of 1" in last["refused"]
    assert CLIENTS[0] not in json.dumps(last), "the log has pseudonyms"


def test_a_request_made_again_is_refused(vault, service):
    body = pack_message({})
    headers = signed_headers(server_key(vault.keys), "/context", body)
    request = urllib.request.Request(service.address + "/context", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 401
    assert b"replay" in refused.value.read()


def test_strangers_are_not_answered(service):
    with pytest.raises(NotAuthentic):
        RemoteSteward(service.address, b"wrong key" * 4, timeout=60).public_context()
    request = urllib.request.Request(service.address + "/context", b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 401


def posted(service, vault, path, body):
    headers = signed_headers(server_key(vault.keys), path, body)
    request = urllib.request.Request(service.address + path, body, headers, method="POST")
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(request, timeout=30)
    return answer.value.code, answer.value.read()


def message(text, *blobs):
    """A message with a head that `pack_message` would not write."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in (text.encode(), *blobs))


SUM = {"round": 1, "order": ORDER, "coefficients": QUARTERS}
NO_MESSAGES = {
    "nothing": b"",
    "no message": b"no message",
    "cut off": pack_message({}, [b"blob"])[:-2],
    "no mapping": message("[]"),
    "deeply nested": message("[" * 200_000 + "]" * 200_000),
    "deeply nested in a mapping": message('{"round":' * 100_000 + "1" + "}" * 100_000),
    "a number of many digits": message('{"round": 1' + "0" * 10_000 + "}"),
    "not text": (4).to_bytes(8, "little") + b"\xff\xfe{}",
}


@pytest.mark.parametrize("body", NO_MESSAGES.values(), ids=NO_MESSAGES)
@pytest.mark.parametrize("path", slow_but(["/sum"], ["/nonsense", "/sum", "/measure", "/measured-sum"]))
def test_bodies_that_are_no_messages_get_an_answer(vault, service, remote, capfd, path, body):
    code, answer = posted(service, vault, path, body)
    assert code == 400
    assert len(answer) < 1000
    assert remote.public_context()
    assert "Traceback" not in capfd.readouterr().err


SENSELESS = {
    "empty": {},
    "no order": {"round": 1, "coefficients": QUARTERS},
    "no coefficients": {**SUM, "coefficients": {}},
    "coefficients as a list": {**SUM, "coefficients": [0.5, 0.5]},
    "coefficients as text": {**SUM, "coefficients": "0.5"},
    "an overflowing coefficient": {**SUM, "coefficients": {**QUARTERS, CLIENTS[0]: 10**400}},
    "an infinite coefficient": {**SUM, "coefficients": {**QUARTERS, CLIENTS[0]: float("inf")}},
    "a coefficient that is no number": {**SUM, "coefficients": {**QUARTERS, CLIENTS[0]: float("nan")}},
    "a coefficient as text": {**SUM, "coefficients": {**QUARTERS, CLIENTS[0]: "0.25"}},
    "a coefficient as a mapping": {**SUM, "coefficients": {**QUARTERS, CLIENTS[0]: {}}},
    "round 0": {**SUM, "round": 0},
    "a round below 0": {**SUM, "round": -1},
    "an absurd round": {**SUM, "round": 10**300},
    "a round that is no number": {**SUM, "round": float("nan")},
    "a round as text": {**SUM, "round": "1"},
    "a round as a list": {**SUM, "round": [[1]]},
    "no round": {**SUM, "round": None},
    "true": {**SUM, "round": True},
    "an order as a number": {**SUM, "order": 7},
    "an order as a mapping": {**SUM, "order": {"a": 1}},
    "a huge order": {**SUM, "order": "x" * 10_000_000},
    "clients as a number": {**SUM, "clients": 7},
    "clients that are no text": {**SUM, "clients": [[1], {}]},
    "a client twice": {**SUM, "clients": [CLIENTS[0], CLIENTS[0]]},
}


@pytest.mark.slow
@pytest.mark.parametrize("head", SENSELESS.values(), ids=SENSELESS)
@pytest.mark.parametrize("path", ["/sum", "/measure", "/measured-sum"])
def test_requests_that_make_no_sense_get_an_answer(vault, service, remote, capfd, path, head):
    for blobs in ([], [b""], [b"x", b"y"], [b"WRC1" + bytes(12)] * 3):
        code, answer = posted(service, vault, path, pack_message(head, blobs))
        assert code in (400, 403)
        assert len(answer) < 2000
    assert remote.public_context()
    assert "Traceback" not in capfd.readouterr().err
    assert not vault.log_path.exists() or vault.log_path.stat().st_size < 20_000


def test_after_all_that_the_run_can_begin(vault, service, remote, public):
    for head in SENSELESS.values():
        posted(service, vault, "/sum", pack_message(head, [b""]))
    test_a_sum_over_a_connection(vault, remote, public)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Wardround-Time", "tomorrow"), ("X-Wardround-Time", "nan"), ("Content-Length", "1e9")],
)
def test_headers_that_make_no_sense_get_an_answer(vault, service, remote, capfd, name, value):
    from wardround.privacy.encryption.wire import PROOF, _proof

    headers = signed_headers(server_key(vault.keys), "/context", b"")
    headers[name] = value
    if name != "Content-Length":
        headers[PROOF] = _proof(server_key(vault.keys), "/context", headers)
    lines = "".join(f"{key}: {text}\r\n" for key, text in headers.items())
    with socket.create_connection(service.server_address, timeout=30) as connection:
        connection.sendall(f"POST /context HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        assert connection.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))
    assert remote.public_context()
    assert "Traceback" not in capfd.readouterr().err


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
        RemoteSteward(address, server_key(vault.keys), timeout=60).public_context()


def test_no_steward_is_an_error_in_one_line():
    with pytest.raises(WardroundError, match="cannot be reached"):
        RemoteSteward("http://127.0.0.1:9", b"key", timeout=2).public_context()
    with pytest.raises(ConfigError, match="is no address"):
        RemoteSteward("localhost", b"key")


def test_without_tls_it_listens_on_loopback_only(vault):
    with pytest.raises(ConfigError, match="not loopback"):
        StewardService(vault.steward(), b"key", host="0.0.0.0")


def test_keys_are_for_their_owner_only_and_never_replaced(vault, remote, public):
    remote.open_padded_sum(1, ORDER, QUARTERS, padded_sum(vault, public, updates_of(10)))
    assert {path.name for path in vault.folder.iterdir()} >= {
        "progress.json",
        "last-sum-1.npy",
        "openings.jsonl",
    }
    for path in vault.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(ConfigError, match="not replaced"):
        vault.make(CLIENTS, PADDED_SUMS)
    with pytest.raises(ConfigError, match="no steward's folder"):
        Vault(vault.folder / "other").steward()


def test_a_steward_that_comes_back_remembers_what_it_opened(vault, remote, public):
    updates = {client: np.ones(4) for client in CLIENTS}
    opened = remote.open_padded_sum(3, order_of(3), QUARTERS, padded_sum(vault, public, updates, 3))
    again = vault.steward()
    assert again.progress.last_sum == pytest.approx(0.75 * np.ones(4), abs=1e-3)
    assert np.array_equal(again.open_padded_sum(3, order_of(3), QUARTERS, b""), opened)
    others = {**QUARTERS, CLIENTS[0]: 0.3}
    for round, order, coefficients, reason in (
        (2, ORDER, QUARTERS, "a replay"),
        (1, "another run", QUARTERS, "A new run needs new keys"),
        (3, order_of(3), others, "two sums can be subtracted"),
        (3, "another", QUARTERS, "another order"),
    ):
        with pytest.raises(Refused, match=reason):
            again.open_padded_sum(round, order, coefficients, b"")


def test_an_old_copy_of_its_memory_is_noticed(vault, remote, public):
    updates = updates_of(4)
    remote.open_padded_sum(1, ORDER, QUARTERS, padded_sum(vault, public, updates))
    kept = {path: path.read_bytes() for path in (vault.progress_path, vault.folder / "last-sum-1.npy")}
    remote.open_padded_sum(2, order_of(2), QUARTERS, padded_sum(vault, public, updates, 2))
    for path, content in kept.items():
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"at round 1, but openings\.jsonl has an opening of round 2"):
        vault.steward()


@pytest.mark.slow
def test_a_steward_of_deposits_comes_back_with_its_scalars(tmp_path):
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault, updates = Vault(tmp_path), updates_of(10)
    vault.make(CLIENTS, DEPOSITS)
    keys = client_keys(vault.keys, DEPOSITS)
    public = CkksPublic(vault.steward().public_context()[1])

    def deposits(round):
        return {
            client: seal_for_steward(
                keys[client], client, round, order_of(round), public.encrypt(update, None)
            )
            for client, update in updates.items()
        }

    first = vault.steward()
    measured = [first.measure(1, ORDER, deposits(1))]
    first.open_measured_sum(1, ORDER, QUARTERS)
    measured.append(first.measure(2, order_of(2), deposits(2)))
    second = vault.steward()
    assert second.measure(2, order_of(2), deposits(2)) == measured[1]
    opened = second.open_measured_sum(2, order_of(2), QUARTERS)
    third = vault.steward()
    assert third.measure(2, order_of(2), deposits(2)) == measured[1]
    assert np.array_equal(third.open_measured_sum(2, order_of(2), QUARTERS), opened)
    with pytest.raises(Refused, match="two sums can be subtracted"):
        third.open_measured_sum(2, order_of(2), {**QUARTERS, CLIENTS[0]: 0.3})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.json", b""),
        pytest.param("progress.json", b"{}", marks=pytest.mark.slow),
        pytest.param("progress.json", b"[" * 100_000, marks=pytest.mark.slow),
        pytest.param("progress.json", b'{"round": "x"}', marks=pytest.mark.slow),
        ("progress.json", None),
        ("last-sum-1.npy", b"no array"),
        pytest.param("last-sum-1.npy", b"", marks=pytest.mark.slow),
        ("last-sum-1.npy", None),
    ],
)
def test_a_memory_that_cannot_be_read_ends_the_keys_use(vault, remote, public, name, content):
    """Beginning anew would open rounds a second time."""
    remote.open_padded_sum(1, ORDER, QUARTERS, padded_sum(vault, public, updates_of(4)))
    path = vault.folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}.*its keys cannot be used any more") as problem:
        vault.steward()
    assert "\n" not in str(problem.value)


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
        hidden = run(checked, tmp_path / "runs")  # resumes, with the same steward
        with pytest.raises(KeysSpent, match="A new run needs new keys of the steward"):
            run(load_config({**config, "seed": 1, "privacy": privacy}), tmp_path / "runs")
    finally:
        process.terminate()
        process.wait()
    assert hidden.summary().final["loss"] == pytest.approx(plain.final["loss"], abs=1e-3)
    assert hidden.summary().skipped_rounds == 0
    lines = [json.loads(line) for line in (folder / "openings.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines if "refused" not in line]
    assert kinds.count("sum") == 3
    assert kinds.count("scalars") == (3 if mode == DEPOSITS else 0)
    refused = [line["refused"] for line in lines if "refused" in line]
    assert len(refused) == 1  # these keys have had their run
    assert "a replay" in refused[0]


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
        remote = RemoteSteward(address, server_key(vault.keys), timeout=60)
        with pytest.raises(WardroundError, match=r"cannot be reached.*certificate"):
            remote.public_context()  # nobody vouches for it
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert remote.public_context()
        service.shutdown()
    with pytest.raises(ConfigError, match="not a certificate with its key"):
        StewardService(vault.steward(), b"key", certificate=key, certificate_key=key)
