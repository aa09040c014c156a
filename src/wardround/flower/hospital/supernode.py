"""A hospital's SuperNode: Flower's own, with our client app run inside it.

By default a SuperNode installs the app that the SuperLink sends and, for every message, starts a process that
imports it. Here no code that comes from the server is ever run: the SuperNode is started with `--isolation process`,
which leaves its tasks to another program. A thread of this process takes them through the SuperNode's Runtime
interface and gives them to the client app of the installed package, which passes them to the trainer daemon.

Flower (1.41) fixes some intervals in its code, which are shortened here: it looks for messages every 3 s, notices
after 60 s that a node has died, and a node that lost its server tries again after up to 20 s.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wardround.flower.hospital.trainer_daemon import SOCKET_VARIABLE

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.object_store import ObjectStore
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.nodestate import NodeState

__all__ = ["main"]

HEARTBEAT = 10.0
"""Seconds, the shortest interval that a SuperLink accepts; it takes a node for gone after twice as long."""
TASK_TYPE = "flwr-clientapp"
MAX_RETRY_SECONDS = 5.0
"""Longest time between two attempts to reach a server that is away."""
TASK_POLL_SECONDS = 5.0
"""Time after which tasks are looked for even if no message was seen to arrive."""
log = logging.getLogger("wardround")


def main(arguments: list[str] | None = None) -> None:
    """Run a SuperNode; options that are not ours are passed to `flower-supernode`."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.hospital.supernode", add_help=False)
    parser.add_argument("--trainer-socket", type=Path, required=True)
    parser.add_argument("--node-id-file", type=Path, required=True)
    parser.add_argument("--poll", type=float, default=1.0)
    own, flower = parser.parse_known_args(arguments)
    os.environ[SOCKET_VARIABLE] = str(own.trainer_socket)
    sys.argv = ["flower-supernode", *flower]

    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode, flower_supernode

    options = _parse_args_run_supernode().parse_args(flower)
    arrived = threading.Event()
    _shorten_intervals(own.poll, arrived)
    _sign_off_last_session(options, own.node_id_file)
    address = f"{options.host}:{options.port}"
    worker = TaskWorker(address, options.superexec_auth_secret_file, own.node_id_file, arrived)
    threading.Thread(target=worker.run_forever, name="wardround-tasks", daemon=True).start()
    flower_supernode()
    os._exit(1)  # the connection has ended for good, but Flower's own threads would keep the process alive


class TaskWorker:
    """Takes a SuperNode's tasks and gives them to the client app.

    Args:
        address: Host and port of the SuperNode's Runtime interface.
        secret_file: The secret that the interface asks for; None if it asks for none.
        node_id_file: Where the number is saved that the SuperLink gave this node.
        arrived: Set when a message has arrived.
    """

    def __init__(
        self, address: str, secret_file: str | None, node_id_file: Path, arrived: threading.Event
    ) -> None:
        self.address, self.node_id_file, self.arrived = address, node_id_file, arrived
        self.secret = Path(secret_file).read_bytes() if secret_file else None

    def run_forever(self) -> None:
        """Work on tasks for as long as the process lives."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        client = self._client()
        while True:
            self.arrived.wait(TASK_POLL_SECONDS)
            self.arrived.clear()
            try:
                response = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TASK_TYPE]))
                if response.HasField("task") and response.token:
                    self._work_on(response.token)
            except BaseException as error:  # nothing may end the thread that does the work
                log.error("a task failed: %s: %s", type(error).__name__, error)

    def _work_on(self, token: str) -> None:
        from flwr.app import Message
        from flwr.app.error import Error
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supernode.runtime import run_clientapp as flower

        from wardround.flower.client_app import app

        client = self._client(token)
        heartbeat = _Heartbeat(client)
        try:
            message, context, _, _ = flower.pull_task_input(client)
            self._save_node_id(context.node_id)
            status, details, started = SubStatus.COMPLETED, "", time.monotonic()
            task = f"{message.metadata.message_type} for round {message.metadata.group_id or '-'}"
            try:
                reply = app(message=message, context=context)
            except Exception as error:
                status, details = SubStatus.FAILED, f"{type(error).__name__}: {error}"
                log.error("%s", details)
                code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                reply = Message(Error(code=code, reason=details), reply_to=message)
            del message
            flower.push_message(client, reply, context)
            flower.push_task_output(client, context, status, details)
            problem = details or (reply.error.reason if reply.has_error() else "done")
            print(f"{task}: {problem} ({time.monotonic() - started:.1f} s)", flush=True)
        finally:
            heartbeat.stop()
            client.close()

    def _save_node_id(self, node_id: int) -> None:
        text = str(node_id)
        if not self.node_id_file.exists() or self.node_id_file.read_text() != text:
            self.node_id_file.write_text(text)

    def _client(self, token: str | None = None) -> RuntimeHttpClient:
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
        if token is not None:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        elif self.secret is not None:
            methods = {"/flwr.proto.Runtime/AcquireTask"}
            interceptors.append(
                SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=methods)
            )
        return RuntimeHttpClient.from_server_address(
            self.address, insecure=True, root_certificates=None, interceptors=interceptors
        )


class _Heartbeat:
    """Tells the SuperNode that a task is being worked on."""

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client, self._stopped = client, threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        while not self._stopped.is_set():
            with contextlib.suppress(Exception):  # the task itself will fail if the SuperNode is gone
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            self._stopped.wait(HEARTBEAT)

    def stop(self) -> None:
        self._stopped.set()


class _RecordingState:
    """A node's state that records what is added to it, because Flower leaves tasks of a stopped run behind."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.tasks: list[int] = []
        self.messages: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def create_task(self, *args: Any, **named: Any) -> int | None:
        task = self._state.create_task(*args, **named)
        if task is not None:
            self.tasks.append(task)
        return task

    def store_message(self, message: Message) -> str | None:
        self.messages.append(message.metadata.message_id)
        return self._state.store_message(message)


def _shorten_intervals(poll: float, arrived: threading.Event) -> None:
    from flwr.supercore import heartbeat
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection, start_client_internal

    assert hasattr(http_retry, "MAX_RETRY_DELAY")
    vars(http_retry)["MAX_RETRY_DELAY"] = MAX_RETRY_SECONDS
    for module in (heartbeat, fleet_http_connection):
        assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL")
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT
    pull: Callable[..., int | None] = start_client_internal._pull_and_store_message

    def pull_and_signal(*, state: NodeState, object_store: ObjectStore, **others: Any) -> int | None:
        recording = _RecordingState(state)
        run = pull(state=recording, object_store=object_store, **others)
        if run is not None:
            arrived.set()
            return run
        for task in recording.tasks:  # their message is gone: the run was stopped meanwhile
            state.finish_task(task, sub_status="failed", details="the run was stopped")
        for message in recording.messages:
            state.delete_messages(message_ids=[message])
            object_store.delete(message)
        return None

    def sleep(seconds: float) -> None:
        time.sleep(
            poll if seconds > 1 else seconds / 10
        )  # Flower waits 3 s for messages and 0.5 s for the app's reply

    vars(start_client_internal)["_pull_and_store_message"] = pull_and_signal
    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep)


def _sign_off_last_session(options: argparse.Namespace, node_id_file: Path) -> None:
    """Sign off the session of a SuperNode that was killed: a SuperLink refuses a node it believes to be online."""
    if not node_id_file.exists() or not options.auth_supernode_private_key:
        return
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    with contextlib.suppress(Exception):  # the SuperLink will notice by itself, only later
        key: Any = load_ssh_private_key(Path(options.auth_supernode_private_key).read_bytes(), None)
        with FleetHttpClient.from_server_address(
            options.superlink,
            options.insecure,
            options.root_certificates,
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
        ) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=int(node_id_file.read_text())))


if __name__ == "__main__":
    main()
