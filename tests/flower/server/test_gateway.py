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

PULL = "/v1/fleet/pull-messages"


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


def test_the_open_paths_are_the_fleet_interface_without_registration():
    from flwr.superlink.routers.fleet.router import router

    fleet = {route.path for route in router.routes}
    assert fleet - OPEN_PATHS == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert fleet >= OPEN_PATHS


def test_a_registered_key_passes(superlink, keys):
    content = b"x" * 3_000_000
    response = ask(superlink, keys, PULL, signed(keys / "nodes" / "hospital-a"), content=content)
    assert (response.status_code, response.content) == (200, content)
    assert response.headers["flwr-extra"] == "yes"
    assert "set-cookie" not in response.headers
    assert superlink.seen == [PULL]


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
            "too old",
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


def test_without_keys_nodes_register_themselves_and_control_stays_closed(superlink):
    assert ask(superlink, None, "/v1/fleet/register-node").status_code == 200
    assert ask(superlink, None, "/v1/control/start-run").status_code == 404
    assert superlink.seen == ["/v1/fleet/register-node"]


def test_a_superlink_that_is_away_is_worth_waiting_for(superlink, keys):
    superlink.shutdown()
    superlink.server_close()
    assert ask(superlink, keys, PULL, signed(keys / "nodes" / "hospital-a")).status_code == 502
