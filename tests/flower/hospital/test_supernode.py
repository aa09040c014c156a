"""The SuperNode: Flower's intervals are shortened, and nothing of a stopped run is left behind."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.supercore import heartbeat
from flwr.supercore.retry import http_retry
from flwr.supernode import fleet_http_connection, start_client_internal

from wardround.flower.hospital import supernode


class State:
    """A node's state that records calls."""

    def __init__(self):
        self.calls = []

    def create_task(self, *args, **named):
        return 7

    def store_message(self, message):
        return message.metadata.message_id

    def finish_task(self, task, **named):
        self.calls.append(("finish", task, named["sub_status"]))

    def delete_messages(self, message_ids):
        self.calls.append(("delete", *message_ids))

    def get_node_id(self):
        return 11


@pytest.fixture
def patched(monkeypatch):
    """Shorten the intervals of a Flower whose next pull is decided by `patched.result`; undone after the test."""
    patch = SimpleNamespace(result=None, arrived=threading.Event(), naps=[])

    def pull(*, state, object_store, node_config):
        assert state.get_node_id() == 11, "the rest of the state is passed through"
        state.create_task("flwr-clientapp")
        state.store_message(SimpleNamespace(metadata=SimpleNamespace(message_id="m1")))
        return patch.result

    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", pull)
    monkeypatch.setattr(start_client_internal, "time", start_client_internal.time)
    monkeypatch.setattr(http_retry, "MAX_RETRY_DELAY", http_retry.MAX_RETRY_DELAY)
    for module in (heartbeat, fleet_http_connection):
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", module.HEARTBEAT_DEFAULT_INTERVAL)
    monkeypatch.setattr(supernode.time, "sleep", patch.naps.append)
    supernode._shorten_intervals(0.3, patch.arrived)
    return patch


def pull(state, objects):
    return start_client_internal._pull_and_store_message(
        state=state, object_store=SimpleNamespace(delete=objects.append), node_config={}
    )


def test_a_message_that_arrives_wakes_the_worker(patched):
    patched.result, state, deleted = 3, State(), []
    assert pull(state, deleted) == 3
    assert patched.arrived.is_set()
    assert (state.calls, deleted) == ([], [])


def test_what_is_left_of_a_stopped_run_is_removed(patched):
    state, deleted = State(), []
    assert pull(state, deleted) is None
    assert not patched.arrived.is_set()
    assert state.calls == [("finish", 7, "failed"), ("delete", "m1")]
    assert deleted == ["m1"]


def test_intervals_are_shortened(patched):
    start_client_internal.time.sleep(3)
    start_client_internal.time.sleep(0.5)
    assert patched.naps == [0.3, 0.05]
    assert http_retry.MAX_RETRY_DELAY == 5
    assert heartbeat.HEARTBEAT_DEFAULT_INTERVAL == fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL == 10


def test_a_failed_task_does_not_end_the_worker(tmp_path, monkeypatch):
    """Two tasks: one that fails, one that ends the test."""
    worker = supernode.TaskWorker("127.0.0.1:1", None, tmp_path / "node-id", threading.Event())
    monkeypatch.setattr(supernode, "TASK_POLL_SECONDS", 0)
    tokens = []

    class Enough(BaseException):
        pass

    def acquire(request):
        assert list(request.supported_task_types) == ["flwr-clientapp"]
        return SimpleNamespace(HasField=lambda field: True, token=f"token-{len(tokens)}")

    def work_on(token):
        tokens.append(token)
        raise SystemExit("whatever the app does")

    def log_error(*args):
        if len(tokens) == 2:
            raise Enough

    monkeypatch.setattr(worker, "_client", lambda: SimpleNamespace(AcquireTask=acquire))
    monkeypatch.setattr(worker, "_work_on", work_on)
    monkeypatch.setattr(supernode.log, "error", log_error)
    with pytest.raises(Enough):
        worker.run_forever()
    assert tokens == ["token-0", "token-1"]


def test_the_node_id_is_saved_for_the_next_start(tmp_path):
    path = tmp_path / "node-id"
    worker = supernode.TaskWorker("127.0.0.1:1", None, path, threading.Event())
    worker._save_node_id(123)
    assert path.read_text() == "123"
    worker._save_node_id(456)
    assert path.read_text() == "456"
