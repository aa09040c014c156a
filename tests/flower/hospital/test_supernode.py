"""A hospital's node: brings orders to the trainer and answers to the server, whatever happens to the connection."""

import threading
import time

import pytest

pytest.importorskip("flwr")

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from tests.flower.fleet import NODE, FakeSuperLink

from wardround.errors import ConfigError, WardroundError
from wardround.flower.certificates import make_node_keys
from wardround.flower.hospital import supernode
from wardround.flower.hospital.supernode import Node, NotAdmitted, read_private_key
from wardround.flower.messages import Note, pack, unpack

ORDER = Note({"kind": "train", "round": 3}, {}, {"weights": np.arange(3, dtype=np.float32)})


def train(order):
    note = unpack(order)
    if note.head.get("kind") == "fail":
        raise WardroundError("refused by the hospital's policy")
    return pack(Note({"saw": note.head}, {"loss": 0.5}, {k: 2 * v for k, v in note.arrays.items()}))


@pytest.fixture
def superlink():
    link = FakeSuperLink()
    yield link
    link.close()


@pytest.fixture
def run(superlink, tmp_path, monkeypatch):
    monkeypatch.setattr(supernode, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(supernode, "LONGEST_WAIT", 0.02)
    monkeypatch.setattr(supernode, "QUIET_SECONDS", 0.01)
    nodes = []

    def start(key=None):
        node = Node(superlink.address, None, key, train, tmp_path / "node-id")
        node.raised = []

        def work():
            try:
                node.run()
            except WardroundError as error:
                node.raised.append(error)

        node.thread = threading.Thread(target=work, daemon=True)
        node.thread.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        node._stopped.set()
        node.thread.join(120)
        assert not node.thread.is_alive()


def test_an_order_is_answered(superlink, run, capfd):
    superlink.order(ORDER)
    node = run()
    message, note = superlink.reply()
    assert note.arrays["weights"].tolist() == [0.0, 2.0, 4.0]
    assert (note.metrics, note.head["saw"]["round"]) == ({"loss": 0.5}, 3)
    told = message.metadata
    assert (told.src_node_id, told.dst_node_id, told.reply_to_message_id) == (NODE, 1, "order-1")
    assert (told.run_id, told.group_id, told.message_type) == (5, "3", "train")
    assert superlink.interval == 10, "the shortest that a SuperLink accepts"
    assert superlink.calls.index("confirm-message-received") < superlink.calls.index("push-messages")
    node._stopped.set()
    node.thread.join(120)
    assert "train for round 3: done" in capfd.readouterr().out


def test_an_answer_is_dated_by_the_servers_clock(superlink, run):
    """The order is from another year; a SuperLink refuses an answer that has expired by its own clock."""
    superlink.order(ORDER, ttl=30.0)
    run()
    message, _ = superlink.reply()
    assert 0 <= message.metadata.created_at - 1_800_000_000.0 < 30
    assert message.metadata.created_at + message.metadata.ttl == pytest.approx(1_800_000_030.0)


def test_what_the_trainer_refuses_is_an_error_of_one_line(superlink, run):
    superlink.order(Note({"kind": "fail"}))
    run()
    message, _ = superlink.reply()
    assert (message.error.code, message.error.reason) == (2, "refused by the hospital's policy")


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        RecordDict({"a": ConfigRecord({"x": 1}), "b": ConfigRecord({"x": 2})}),
        RecordDict({"a": ConfigRecord({"x": 1})}),
        RecordDict({"config": ConfigRecord({"json": "{"})}),
        RecordDict({"config": ConfigRecord({"json": "[1]"})}),
        RecordDict({"note": ConfigRecord({"note": "text"})}),
        RecordDict({}),
    ],
)
def test_an_order_that_cannot_be_read_is_answered_with_an_error(superlink, run, records):
    superlink.order(None, records=records)
    run()
    message, _ = superlink.reply()
    assert "version of wardround" in message.error.reason
    superlink.order(ORDER, 2)
    assert not superlink.reply()[0].has_error(), "it goes on working"


def test_a_hello_can_be_read_by_all_versions(superlink, run):
    superlink.order(Note({"kind": "hello", "min_count": 5}))
    assert any(b"json" in content for content in superlink.objects.values())
    run()
    assert superlink.reply()[1].head["saw"] == {"kind": "hello", "min_count": 5}


@pytest.mark.slow
def test_a_superlink_that_was_started_anew_is_told_who_this_is(superlink, run):
    run()
    superlink.order(ORDER)
    superlink.reply()
    superlink.online = False  # it has forgotten all nodes
    superlink.order(ORDER, 2)
    superlink.reply()
    assert superlink.online


def test_heartbeats_notice_that_the_superlink_does_not_know_the_node(superlink, run, monkeypatch):
    monkeypatch.setattr(supernode, "BEATS_EVERY", 0.01)
    superlink.alive = False
    node = run()
    deadline = time.monotonic() + 120
    while not node._unknown.is_set() and superlink.calls.count("activate-node") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("failures", [[502, 503], [0, 0]])
@pytest.mark.parametrize("call", ["activate-node", "pull-messages", "push-messages", "push-object"])
def test_a_server_that_is_away_costs_time_and_no_answer(superlink, run, call, failures):
    superlink.failures[call] = list(failures)
    superlink.order(ORDER)
    run()
    assert superlink.reply()[1].metrics == {"loss": 0.5}


def test_the_session_of_a_killed_node_is_signed_off(superlink, run, tmp_path):
    superlink.online = True
    (tmp_path / "node-id").write_text(str(NODE))
    superlink.order(ORDER)
    run()
    superlink.reply()
    assert superlink.calls.count("deactivate-node") == 1


def test_a_node_signs_off_when_it_ends(superlink, run, tmp_path):
    superlink.order(ORDER)
    node = run()
    superlink.reply()
    assert (tmp_path / "node-id").read_text() == str(NODE)
    node._stopped.set()
    node.thread.join(120)
    assert not superlink.online
    assert superlink.calls[-1] == "unregister-node", "it had registered itself: there are no keys"


def test_a_key_that_is_refused_ends_the_node(superlink, run, tmp_path):
    make_node_keys(tmp_path, ["hospital-a"])
    superlink.failures["activate-node"] = [412]
    node = run(read_private_key(tmp_path / "nodes" / "hospital-a"))
    node.thread.join(120)
    assert [type(error) for error in node.raised] == [NotAdmitted]
    assert "register-node" not in superlink.calls


def test_a_file_that_is_no_key(tmp_path):
    (tmp_path / "key").write_text("nonsense")
    with pytest.raises(ConfigError, match="not a private key"):
        read_private_key(tmp_path / "key")


def test_a_node_is_not_there_before_its_trainer_is(tmp_path, monkeypatch):
    """A server that knows the hospital would send it an order, whose deadline runs while the trainer still compiles."""
    from wardround.flower.hospital.trainer_daemon import TrainerDaemon

    socket, listening, tries = tmp_path / "trainer", [], threading.Event()
    monkeypatch.setattr(supernode.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(Node, "run", lambda node: listening.append(node.ask(b"order")))
    monkeypatch.setattr(
        "wardround.flower.hospital.trainer_daemon.time.sleep", lambda seconds: tries.set()
    )  # so it has asked, and nobody listened
    options = [
        "--superlink",
        "127.0.0.1:1",
        "--node-id-file",
        str(tmp_path / "id"),
        "--trainer-socket",
        str(socket),
    ]
    thread = threading.Thread(target=supernode.main, args=[options])
    thread.start()
    assert tries.wait(60)
    assert listening == []
    threading.Thread(target=TrainerDaemon(socket, bytes.upper).serve_forever, daemon=True).start()
    thread.join(60)
    assert listening == [b"ORDER"]
