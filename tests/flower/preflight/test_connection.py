"""Checks against the other side, with a gateway of the test's own."""

import base64
import http.server
import json
import ssl
import threading
import time
from email.utils import formatdate

import pytest

from wardround.flower.certificates import make_server_certificate, public_keys
from wardround.flower.hospital.join import Joiner
from wardround.flower.preflight import connection

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway(keys):
    """Start a server that speaks as the gateway does; yields its port and what it should do."""
    rules = {"clock": 0.0, "known": True, "certificate": keys}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(200, b"ok")

        def do_POST(self):
            from cryptography.hazmat.primitives import hashes
            from cryptography.hazmat.primitives.asymmetric import ec

            stamp, signature = (
                self.headers["flwr-timestamp"],
                base64.b64decode(self.headers["flwr-signature"]),
            )
            public_keys(keys.nodes)["a"].verify(signature, stamp.encode(), ec.ECDSA(hashes.SHA256()))
            detail = {"detail": "this key is not registered with the federation"}
            status, body = (500, b"{}") if rules["known"] else (412, json.dumps(detail).encode())
            self._answer(status, body)

        def _answer(self, status, body):
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() + rules["clock"], usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server, keys.server_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], rules
    server.shutdown()
    server.server_close()


def check(hospital, port, **values):
    path = hospital(superlink=f"127.0.0.1:{port}", **values)
    return {one.check: one for one in Joiner.read(path).check(connect=True)}


def test_a_server_that_knows_this_hospital(hospital, gateway):
    found = check(hospital, gateway[0])
    for name in ("server", "server's certificate", "clocks", "registration"):
        assert found[name].status == "ok", found[name]


def test_a_key_that_the_server_does_not_know(hospital, gateway):
    gateway[1]["known"] = False
    found = check(hospital, gateway[0])["registration"]
    assert found.status == "failed"
    assert "not registered" in found.text
    assert "a.pub" in found.remedy


@pytest.mark.parametrize(("difference", "word"), [(60.0, "behind"), (-60.0, "ahead of")])
def test_clocks_that_differ(hospital, gateway, difference, word):
    gateway[1]["clock"] = difference
    found = check(hospital, gateway[0])["clocks"]
    assert found.status == "failed"
    assert word in found.text


def test_an_authority_that_did_not_sign_it(hospital, gateway, tmp_path):
    make_server_certificate(tmp_path / "other", ["127.0.0.1"])
    found = check(hospital, gateway[0], root_certificates="other/ca.crt")["server"]
    assert found.status == "failed"
    assert "is not signed by" in found.text


def test_nobody_there_no_such_name_no_tls_no_address(hospital, gateway):
    assert "cannot be reached" in check(hospital, 1)["server"].text
    path = hospital(superlink="no-such-host.invalid:8000")
    found = {one.check: one for one in Joiner.read(path).check(connect=True)}["server"]
    assert found.status == "failed"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as plain:
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        assert "does not speak TLS" in check(hospital, plain.server_address[1])["server"].text
        plain.shutdown()
    path = hospital(superlink="nonsense")
    found = {one.check: one for one in Joiner.read(path).check(connect=True)}["server"]
    assert "is no address" in found.text
    assert connection.parse_address("[::1]:8000", path) == ("::1", 8000)
