"""The gateway: SuperNodes' signed requests pass, nothing else reaches the SuperLink."""

import asyncio
import base64
import datetime as dt
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from wardround.flower.certificates import make_node_keys, public_keys
from wardround.flower.server.gateway import OPEN_PATHS, Gateway

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


class SuperLink(BaseHTTPRequestHandler):
    """Echoes requests and records their paths."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(self.path)
        self.send_response(200)
        self.send_header("flwr-extra", "yes")
        self.send_header("Set-Cookie", "no")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.seen.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format, *args):
        pass


@pytest.fixture
def superlink():
    server = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    server.seen = []
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def keys(tmp_path):
    make_node_keys(tmp_path, ["hospital-a"])
    make_node_keys(tmp_path / "strangers", ["stranger"])
    return tmp_path


def signed(path, at=None, claimed_key=None):
    """Return the headers of a SuperNode with the private key in `path`."""
    key = load_ssh_private_key(path.read_bytes(), None)
    stamp = (at or dt.datetime.now(dt.UTC)).isoformat()
    key_bytes = public_key_to_bytes(claimed_key or key.public_key())
    return {
        "flwr-public-key": base64.b64encode(key_bytes).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(sign_message(key, stamp.encode())).decode(),
    }


def ask(superlink, keys, path, headers=None, method="POST", content=b"message"):
    port = superlink.server_address[1]
    known = None if keys is None else public_keys(keys / "nodes")
    gateway = Gateway(f"http://127.0.0.1:{port}", None, known)

    async def once():
        transport = httpx.ASGITransport(app=gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(once())


@pytest.mark.slow
def test_the_open_paths_are_the_fleet_interface_without_registration():
    from flwr.superlink.routers.fleet.router import router

    fleet = {route.path for route in router.routes}
    assert fleet - OPEN_PATHS == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert fleet >= OPEN_PATHS


def test_a_registered_key_passes(superlink, keys):
    content = b"x" * 3_000_000
    response = ask(superlink, keys, PUSH, signed(keys / "nodes" / "hospital-a"), content=content)
    assert (response.status_code, response.content) == (200, content)
    assert response.headers["flwr-extra"] == "yes"
    assert "set-cookie" not in response.headers
    assert superlink.seen == [PUSH]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/pull-messages/",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_everything_else_stays_outside_even_with_a_good_key(superlink, keys, path):
    response = ask(superlink, keys, path, signed(keys / "nodes" / "hospital-a"))
    assert response.status_code == 404
    assert superlink.seen == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_stay_outside(superlink, keys, method):
    assert ask(superlink, keys, PULL, signed(keys / "nodes" / "hospital-a"), method).status_code == 404
    assert superlink.seen == []


def test_health_may_be_asked_for(superlink, keys):
    assert ask(superlink, keys, "/health", method="GET", content=None).text == "ok"


def _named_but_not_signed(keys):
    return signed(keys / "strangers/nodes/stranger", claimed_key=public_keys(keys / "nodes")["hospital-a"])


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (lambda keys: {}, "not signed by a SuperNode"),
        (lambda keys: signed(keys / "strangers/nodes/stranger"), "not registered"),
        (_named_but_not_signed, "not signed with the key it names"),
        (
            lambda keys: signed(keys / "nodes/hospital-a", dt.datetime.now(dt.UTC) - dt.timedelta(minutes=7)),
            "by a clock that differs by 420 s",
        ),
        (
            lambda keys: signed(
                keys / "nodes/hospital-a", dt.datetime.now(dt.UTC) + dt.timedelta(seconds=61)
            ),
            "by a clock that differs by -6",
        ),
        (
            lambda keys: signed(keys / "nodes/hospital-a", dt.datetime.now(dt.UTC).replace(tzinfo=None)),
            "not signed by a SuperNode",
        ),
        (
            lambda keys: signed(keys / "nodes/hospital-a") | {"flwr-signature": "%%%"},
            "not signed by a SuperNode",
        ),
        (
            lambda keys: signed(keys / "nodes/hospital-a") | {"flwr-signature": "aGVsbG8="},
            "not signed with the key",
        ),
    ],
)
def test_without_a_registered_keys_signature_nothing_passes(superlink, keys, headers, words):
    response = ask(superlink, keys, PULL, headers(keys))
    assert response.status_code == 412
    assert words in response.json()["detail"]
    assert superlink.seen == []


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [(PUSH, 1000, 200), (PUSH, 1001, 413), (PULL, 2**20, 200), (PULL, 2**20 + 1, 413)],
)
def test_what_is_too_large_is_refused_before_it_is_read(superlink, keys, path, size, status):
    """The server app says how large an update can be; other requests are small."""
    gateway = Gateway(f"http://127.0.0.1:{superlink.server_address[1]}", None, public_keys(keys / "nodes"))
    gateway.largest_object = 1000
    headers, read, sent = signed(keys / "nodes" / "hospital-a"), [], []
    scope = {
        "type": "http", "method": "POST", "path": path, "client": ("10.0.0.9", 1),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()]
        + [(b"content-length", str(size).encode())],
    }  # fmt: skip

    async def receive():
        read.append(True)
        return {"type": "http.request", "body": b"x" * size}

    async def send(message):
        sent.append(message)

    asyncio.run(gateway(scope, receive, send))
    assert sent[0]["status"] == status
    assert read == ([True] if status == 200 else [])
    assert bool(superlink.seen) == (status == 200)
    assert gateway.refusals.total == (status != 200)


def test_a_request_that_does_not_say_how_long_it_is_is_refused(superlink, keys):
    async def parts():
        yield b"x"

    assert (
        ask(superlink, keys, PUSH, signed(keys / "nodes" / "hospital-a"), content=parts()).status_code == 413
    )
    assert superlink.seen == []


def test_refusals_are_logged_with_their_address(superlink, keys, capfd):
    ask(superlink, keys, PULL, signed(keys / "strangers/nodes/stranger"))
    ask(superlink, keys, "/v1/control/start-run")
    lines = capfd.readouterr().err.splitlines()
    assert "refused 127.0.0.1: this key is not registered with the federation" in lines[0]
    assert "refused 127.0.0.1: a stranger's request (POST '/v1/control/start-run')" in lines[1]


def test_without_keys_nodes_register_themselves_and_control_stays_closed(superlink):
    assert ask(superlink, None, "/v1/fleet/register-node").status_code == 200
    assert ask(superlink, None, "/v1/control/start-run").status_code == 404
    assert superlink.seen == ["/v1/fleet/register-node"]


def test_a_superlink_that_is_away_is_worth_waiting_for(superlink, keys):
    superlink.shutdown()
    superlink.server_close()
    assert ask(superlink, keys, PULL, signed(keys / "nodes" / "hospital-a")).status_code == 502


def test_keys_and_counters_while_it_runs(superlink, keys, tmp_path):
    """A key that is added is let in, one that is revoked is not, without a restart; refusals and bytes are counted."""
    from wardround.flower.server.key_folder import KeyFolder, add_key, revoke_key

    now = [0.0]
    folder = KeyFolder(keys / "nodes", lambda: now[0])
    port = superlink.server_address[1]
    gateway = Gateway(f"http://127.0.0.1:{port}", None, folder, counters_path=tmp_path / "gateway.json")
    stranger = keys / "strangers" / "nodes" / "stranger"

    def pull(key):
        async def once():
            now[0] += 2.0
            transport = httpx.ASGITransport(app=gateway)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return (await client.post(PUSH, headers=signed(key), content=b"12345")).status_code

        return once()

    async def all_of_it():
        statuses = [await pull(stranger)]
        add_key(keys / "nodes", stranger.with_suffix(".pub"))
        statuses.append(await pull(stranger))
        revoke_key(keys / "nodes", "hospital-a")
        return [*statuses, await pull(keys / "nodes" / "hospital-a"), await pull(stranger)]

    assert asyncio.run(all_of_it()) == [412, 200, 412, 200]
    assert gateway.refusals.total == 2
    assert (gateway.counters.requests, gateway.counters.received, gateway.counters.sent) == (2, 10, 10)
    assert (tmp_path / "gateway.json").exists()


def test_clocks_are_measured_by_what_was_really_signed(superlink, keys):
    now = dt.datetime.now(dt.UTC)
    gateway = Gateway("http://127.0.0.1:1", None, public_keys(keys / "nodes"))

    def problem(path, at, claimed_key=None):
        headers = signed(path, at, claimed_key)
        return gateway._signature_problem({name.encode(): value.encode() for name, value in headers.items()})

    own, other = keys / "nodes" / "hospital-a", keys / "strangers" / "nodes" / "stranger"
    claimed = public_keys(keys / "nodes")["hospital-a"]
    assert "not signed" in problem(other, now - dt.timedelta(seconds=900), claimed)
    assert gateway.counters.clocks.differences() == {}, "a stranger cannot make a hospital's clock look wrong"
    assert "by a clock that differs by -" in problem(own, now + dt.timedelta(seconds=1000))
    assert gateway.counters.clocks.differences()["hospital-a"] > 900
    for seconds in (30, 31, 32):
        assert problem(own, now - dt.timedelta(seconds=seconds)) is None, (
            "it passes, and is said all the same"
        )
    assert gateway.counters.clocks.differences()["hospital-a"] < -29


def test_a_signature_that_a_node_had_before_the_server_restarted_is_no_wrong_clock(keys):
    """A node signs every 20 s: the first signature that a new gateway sees can be that old."""
    now = dt.datetime.now(dt.UTC)
    gateway = Gateway("http://127.0.0.1:1", None, public_keys(keys / "nodes"))

    def see(seconds_old):
        headers = signed(keys / "nodes" / "hospital-a", now - dt.timedelta(seconds=seconds_old))
        sent = {name.encode(): value.encode() for name, value in headers.items()}
        for _ in range(5):  # a node uses a signature for all its requests
            assert gateway._signature_problem(sent) is None
        return gateway.counters.clocks.differences().get("hospital-a", 0.0)

    assert see(19) == 0.0
    assert see(15) == 0.0, "and the next one may have been signed while the gateway stood still"
    assert -4 < see(0.1) <= 0
    honest = gateway
    gateway = Gateway("http://127.0.0.1:1", None, public_keys(keys / "nodes"))
    assert [see(19), see(11.2), see(11.1)][-1] < -11, "a clock that is behind is, with every signature"
    assert honest.counters.clocks.differences()["hospital-a"] > -4


@pytest.mark.slow
def test_a_revoked_key_is_out_at_once(superlink, keys, tmp_path):
    """Its open question is answered with a refusal, what it was sending is abandoned; nobody has to ask first."""
    from wardround.flower.server import gateway as module
    from wardround.flower.server.key_folder import KeyFolder, add_key, revoke_key

    add_key(keys / "nodes", keys / "strangers" / "nodes" / "stranger.pub")
    looks, told = [], []
    folder = KeyFolder(keys / "nodes", lambda: looks.append(0) or float(len(looks)))  # always time to look
    port = superlink.server_address[1]
    gateway = Gateway(f"http://127.0.0.1:{port}", None, folder, tmp_path / "bell")
    gateway.doorbell.tell = lambda **line: told.append(line)
    own = keys / "nodes" / "hospital-a"
    identity = module.identity_of_key(module.key_bytes(public_keys(keys / "nodes")["hospital-a"]))

    async def all_of_it():
        watcher = asyncio.ensure_future(gateway._watch_keys())
        transport = httpx.ASGITransport(app=gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client:
            first = await client.post(PULL, headers=signed(own), content=b"")
            gateway._uploads[identity] = ("order-7", {"part"})
            waiting = asyncio.ensure_future(client.post(PULL, headers=signed(own), content=b""))
            while not gateway.doorbell._orders[identity]._waiters:
                await asyncio.sleep(0)
            revoke_key(keys / "nodes", "hospital-a")
            refused = await waiting
        watcher.cancel()
        return first.status_code, refused.status_code, refused.text

    first, status, text = asyncio.run(all_of_it())
    assert (first, status) == (200, 412)
    assert "not registered" in text
    assert superlink.seen == [PULL], "the SuperLink was not asked again"
    assert {"abandoned": "order-7"} in told
    assert gateway._uploads == {}
