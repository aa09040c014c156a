"""What we rely on in Flower beyond its public Python interface: fails when a new Flower changes it.

Run it against another Flower before allowing it in `pyproject.toml`.
"""

import ast
import base64
import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto import control_pb2, error_pb2, fleet_pb2, heartbeat_pb2, message_pb2
from tests.flower.fleet import FakeSuperLink

import wardround
from wardround.flower import wire
from wardround.flower.hospital import supernode
from wardround.flower.processes import console_script
from wardround.flower.server import broker, gateway, serve, superlink

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation"}


def flower_imports():
    for path in Path(wardround.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
                yield path.name, node.module
            elif isinstance(node, ast.Import):
                yield from (
                    (path.name, alias.name) for alias in node.names if alias.name.split(".")[0] == "flwr"
                )


@pytest.mark.slow
def test_only_public_modules_and_the_wire_format_are_imported():
    """Flower's apps, and the protobuf messages that its programs exchange; nothing that is private to Flower."""
    strange = {
        entry
        for entry in flower_imports()
        if entry[1] not in PUBLIC and not entry[1].startswith("flwr.proto")
    }
    # A Grid without a SuperLink, for tests and trials: Flower has no public way to make a message there.
    assert strange == {("inline_grid.py", "flwr.supercore.task_identity")}


def test_nothing_of_flower_is_patched():
    for path in (Path(wardround.__file__).parent / "flower").rglob("*.py"):
        text = path.read_text()
        assert "vars(" not in text, path
        assert "setattr(" not in text, path


LOADED = """
import runpy, sys
try:
    runpy.run_module(sys.argv[1], run_name="__main__")
except SystemExit:
    print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "needless"),
    [
        ("wardround.flower.hospital.supernode", {"flwr.app", "flwr.cli", "grpc", "rich", "torch"}),
        ("wardround.flower.server.gateway", {"torch"}),
    ],
)
def test_processes_that_only_pass_messages_on_load_little(module, needless):
    """The messages of Flower can be imported without its apps."""
    done = subprocess.run([sys.executable, "-c", LOADED, module], capture_output=True, text=True)
    assert "required: --" in done.stderr
    loaded = set(done.stdout.split())
    assert "google.protobuf" in loaded
    assert not needless & loaded


def test_headers_are_flowers():
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore import constant

    assert wire.KEY_HEADER == constant.FLEET_HTTP_PUBLIC_KEY_HEADER
    assert wire.SIGNATURE_HEADER == constant.FLEET_HTTP_SIGNATURE_HEADER
    assert wire.STAMP_HEADER == TIMESTAMP_HEADER
    assert list(wire.version_headers("x")) == [
        constant.FLWR_PACKAGE_NAME_METADATA_KEY,
        constant.FLWR_PACKAGE_VERSION_METADATA_KEY,
        constant.FLWR_COMPONENT_NAME_METADATA_KEY,
    ]


def test_versions_are_accepted_by_flower():
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    peer, problem = RuntimeVersionMetadata.from_metadata(tuple(wire.version_headers("wardround").items()))
    assert problem is None
    assert RuntimeVersionMetadata.from_local_component("SuperLink").check_compatibility(peer) is None


def test_the_media_type_is_flowers():
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

    assert wire.PROTOBUF == PROTOBUF_MEDIA_TYPE


def test_signatures_are_read_by_flower_and_made_anew_in_time():
    from flwr.common.constant import TIMESTAMP_TOLERANCE
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    signer = wire.Signer(ec.generate_private_key(ec.SECP384R1()))
    headers = signer.headers()
    key = bytes_to_public_key(base64.b64decode(headers[wire.KEY_HEADER]))
    stamp, signature = headers[wire.STAMP_HEADER].encode(), base64.b64decode(headers[wire.SIGNATURE_HEADER])
    assert verify_signature(key, stamp, signature)
    assert wire.verify_signature(key, stamp, signature)
    assert not wire.verify_signature(key, stamp + b"x", signature)
    assert signer.headers()[wire.STAMP_HEADER] == headers[wire.STAMP_HEADER]
    signer._made -= wire.SIGNATURE_SECONDS
    assert signer.headers()[wire.STAMP_HEADER] != headers[wire.STAMP_HEADER]
    assert wire.SIGNATURE_SECONDS < TIMESTAMP_TOLERANCE / 2
    assert gateway.MAX_SIGNATURE_AGE.total_seconds() <= TIMESTAMP_TOLERANCE


def test_the_gateway_has_the_superlinks_patience_with_clocks():
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE

    assert gateway.MAX_SIGNATURE_LEAD.total_seconds() == SYSTEM_TIME_TOLERANCE


def test_objects_are_flowers():
    """Reply, `RecordDict` and record are, byte for byte, what Flower makes of the same reply."""
    record = ConfigRecord({"note": b"content \0 with zeros"})
    assert wire.config_record({"note": b"content \0 with zeros"}) == record.deflate()
    metadata = message_pb2.Metadata(
        run_id=3, src_node_id=9, dst_node_id=1, reply_to_message_id="order", group_id="4", ttl=10.0,
        message_type="train", created_at=1.8e9,
    )  # fmt: skip
    chain, contents = wire.reply_objects(
        message_pb2.Message(metadata=metadata),
        {"note": wire.config_record({"note": b"content \0 with zeros"})},
    )
    records = RecordDict({"note": record})
    message = Message.inflate(contents[chain[0]], {chain[1]: records})
    assert chain == [message.object_id, records.object_id, record.object_id]
    assert contents[chain[0]] == message.deflate()
    assert contents[chain[1]] == records.deflate()
    assert (message.metadata.reply_to_message_id, message.metadata.group_id) == ("order", "4")


def test_an_error_is_flowers():
    metadata = message_pb2.Metadata(run_id=3, message_type="train", created_at=1.8e9, ttl=9.0)
    reply = message_pb2.Message(metadata=metadata, error=error_pb2.Error(code=2, reason="it failed"))
    chain, contents = wire.reply_objects(reply, {})
    message = Message.inflate(contents[chain[0]])
    assert (message.error.code, message.error.reason) == (2, "it failed")
    assert message.deflate() == contents[chain[0]]


def test_records_are_read_and_what_is_none_is_not():
    content = ConfigRecord({"json": '{"kind": "hello"}', "number": 3}).deflate()
    assert json.loads(wire.read_config_record(content, "json")) == {"kind": "hello"}
    assert wire.read_config_record(content, "note") is None
    assert wire.read_config_record(content, "number") is None
    assert wire.read_config_record(RecordDict().deflate(), "json") is None
    assert wire.read_config_record(b"ConfigRecord  3\0\xff\xff\xff", "json") is None


def test_requests_are_flowers():
    """Path, request and response of each call, as Flower's own clients make it."""
    from flwr.supercore.control.control_http_client import ControlHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient

    def calls(client):
        found = {}
        own = client("http://x")
        own._unary_unary = lambda **named: found.update(
            {named["path"]: (type(named["request"]).__name__, named["response_type"].__name__)}
        )
        for name in vars(client):
            if not name.startswith("_") and callable(getattr(client, name)):
                kinds = getattr(client, name).__annotations__
                request = kinds.get("request")
                if isinstance(request, type):
                    getattr(own, name)(request())
        return found

    fleet, control = calls(FleetHttpClient), calls(ControlHttpClient)
    assert {wire.FLEET + call for call in (*wire.NODE_CALLS, *wire.SELF_REGISTRATION)} == set(fleet)
    used = [fleet_pb2.ActivateNodeRequest, fleet_pb2.PullMessagesRequest, fleet_pb2.PushMessagesRequest]
    assert {one.__name__ for one in used} <= {request for request, _ in fleet.values()}
    expected = {
        "start-run": "StartRun", "stop-run": "StopRun", "list-runs": "ListRuns", "list-nodes": "ListNodes",
        "register-node": "RegisterNode", "unregister-node": "UnregisterNode",
    }  # fmt: skip
    for path, name in expected.items():
        assert control[wire.CONTROL + path] == (f"{name}Request", f"{name}Response")
        assert hasattr(control_pb2, f"{name}Request")


def test_words_and_numbers_are_flowers():
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, ErrorCode, Status, SubStatus

    assert (superlink.FINISHED, superlink.COMPLETED) == (Status.FINISHED, SubStatus.COMPLETED)
    assert supernode.HEARTBEAT == HEARTBEAT_MIN_INTERVAL
    assert supernode.FAILED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert (broker.NODE_GONE, broker.NOT_FOUND) == (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE)


@pytest.mark.slow
def test_options_of_flowers_programs():
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME

    assert serve.IN_MEMORY == FLWR_IN_MEMORY_DB_NAME
    text = subprocess.run(
        [console_script("flower-superlink"), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in ("--database", "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--host",
                   "--port", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile", "--insecure"):  # fmt: skip
        assert option in text


@pytest.mark.parametrize(
    "end", [ConnectionResetError(), ssl.SSLEOFError(), ssl.SSLZeroReturnError(), TimeoutError()]
)
def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again(end, monkeypatch):
    """However TLS says it; a request that got no answer in time is not made twice."""
    superlink = FakeSuperLink()
    try:
        connection = wire.Connection(superlink.address, None, dict)
        beat = (wire.FLEET + "send-node-heartbeat", heartbeat_pb2.SendNodeHeartbeatRequest())

        def hang_up(*_):
            raise end

        connection.call(*beat, heartbeat_pb2.SendNodeHeartbeatResponse)
        monkeypatch.setattr(connection._open, "request", hang_up)
        if isinstance(end, TimeoutError):
            with pytest.raises(TimeoutError):
                connection.call(*beat, heartbeat_pb2.SendNodeHeartbeatResponse)
        else:
            assert connection.call(*beat, heartbeat_pb2.SendNodeHeartbeatResponse).success
            assert len(superlink.calls) == 2

        connection.close()
        monkeypatch.setattr(wire.http.client.HTTPConnection, "request", hang_up)
        with pytest.raises(type(end)):  # a new connection is not tried twice
            connection.call(*beat, heartbeat_pb2.SendNodeHeartbeatResponse)
        connection.close()
    finally:
        superlink.close()
