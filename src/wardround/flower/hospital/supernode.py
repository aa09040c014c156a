"""A hospital's SuperNode: Flower's own, with our client app run inside it.

Left to itself, a SuperNode installs the app that the SuperLink sends and starts a process that imports it for every
message. Here nothing that comes from the server is ever run: the SuperNode is started with `--isolation process`,
which leaves its tasks to somebody else, and a thread of this process takes them through the SuperNode's Runtime
interface and gives them to the client app of the installed package. That app hands them on to the resident trainer.

Flower fixes some intervals in its code (1.41), which are shortened here: it looks for messages every 3 s, a node
that died is noticed after 60 s, and one that lost its server tries again after up to 20 s.
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
from typing import Any

from wardround.flower.hospital.trainer_daemon import SOCKET_VARIABLE

__all__ = ["main"]

HEARTBEAT = 10.0
"""The shortest interval that a SuperLink takes; a node is missed after twice as long."""
TASK_TYPE = "flwr-clientapp"
LONGEST_WAIT = 5.0
"""Seconds between two tries to reach a server that is away."""
UNHEARD = 5.0
"""Seconds after which tasks are looked for even though no message was seen to arrive."""
log = logging.getLogger("wardround")


def main(arguments: list[str] | None = None) -> None:
    """Run a SuperNode; what is not ours is handed to `flower-supernode`."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.hospital.supernode", add_help=False)
    parser.add_argument("--resident", type=Path, required=True)
    parser.add_argument("--remember", type=Path, required=True)
    parser.add_argument("--poll", type=float, default=1.0)
    own, flower = parser.parse_known_args(arguments)
    os.environ[SOCKET_VARIABLE] = str(own.resident)
    sys.argv = ["flower-supernode", *flower]

    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode, flower_supernode

    options = _parse_args_run_supernode().parse_args(flower)
    arrived = threading.Event()
    _shorten_intervals(own.poll, arrived)
    _leave_last_session(options, own.remember)
    tasks = Tasks(f"{options.host}:{options.port}", options.superexec_auth_secret_file, own.remember, arrived)
    threading.Thread(target=tasks.work, name="wardround-tasks", daemon=True).start()
    flower_supernode()
    os._exit(1)  # the connection has ended for good; Flower's own threads would keep the process


class Tasks:
    """Takes a SuperNode's tasks and has the client app do them."""

    def __init__(
        self, address: str, secret_file: str | None, remember: Path, arrived: threading.Event
    ) -> None:
        self.address, self.remember, self.arrived = address, remember, arrived
        self.secret = Path(secret_file).read_bytes() if secret_file else None

    def work(self) -> None:
        """For as long as the process lives."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        client = self._client()
        while True:
            self.arrived.wait(UNHEARD)
            self.arrived.clear()
            try:
                got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TASK_TYPE]))
                if got.HasField("task") and got.token:
                    self._do(got.token)
            except BaseException as error:  # whatever it is must not end the thread that does the work
                log.error("a task failed: %s: %s", type(error).__name__, error)

    def _do(self, token: str) -> None:
        from flwr.app import Message
        from flwr.app.error import Error
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supernode.runtime import run_clientapp as flower

        from wardround.flower.client_app import app

        client = self._client(token)
        heartbeat = _Heartbeat(client)
        try:
            message, context, _, _ = flower.pull_task_input(client)
            self._remember(context.node_id)
            status, details, begin = SubStatus.COMPLETED, "", time.monotonic()
            what = f"{message.metadata.message_type} for round {message.metadata.group_id or '-'}"
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
            print(f"{what}: {problem} ({time.monotonic() - begin:.1f} s)", flush=True)
        finally:
            heartbeat.stop()
            client.close()

    def _remember(self, node_id: int) -> None:
        text = str(node_id)
        if not self.remember.exists() or self.remember.read_text() != text:
            self.remember.write_text(text)

    def _client(self, token: str | None = None) -> Any:
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

    def __init__(self, client: Any) -> None:
        self._client, self._stopped = client, threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        while not self._stopped.is_set():
            with contextlib.suppress(Exception):  # the task itself will find out
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            self._stopped.wait(HEARTBEAT)

    def stop(self) -> None:
        self._stopped.set()


class _Watched:
    """A node's state that remembers what was put into it. Flower leaves tasks of a stopped run behind."""

    def __init__(self, state: Any) -> None:
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

    def store_message(self, message: Any) -> Any:
        self.messages.append(message.metadata.message_id)
        return self._state.store_message(message)


def _shorten_intervals(poll: float, arrived: threading.Event) -> None:
    from flwr.supercore import heartbeat
    from flwr.supercore.retry import http_retry
    from flwr.supernode import fleet_http_connection, start_client_internal

    assert hasattr(http_retry, "MAX_RETRY_DELAY")
    vars(http_retry)["MAX_RETRY_DELAY"] = LONGEST_WAIT
    for module in (heartbeat, fleet_http_connection):
        assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL")
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT
    pull: Callable[..., int | None] = start_client_internal._pull_and_store_message

    def pull_and_tell(*, state: Any, object_store: Any, **others: Any) -> int | None:
        watched = _Watched(state)
        run = pull(state=watched, object_store=object_store, **others)
        if run is not None:
            arrived.set()
            return run
        for task in watched.tasks:  # whose message cannot be had any more: its run was stopped meanwhile
            state.finish_task(task, sub_status="failed", details="the run was stopped")
        for message in watched.messages:
            state.delete_messages(message_ids=[message])
            object_store.delete(message)
        return None

    def sleep(seconds: float) -> None:
        time.sleep(poll if seconds > 1 else seconds / 10)  # for messages 3 s, for the app's reply 0.5 s

    vars(start_client_internal)["_pull_and_store_message"] = pull_and_tell
    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep)


def _leave_last_session(options: argparse.Namespace, remember: Path) -> None:
    """A SuperLink does not let a node in that it believes to be there: sign off for one that was killed."""
    if not remember.exists() or not options.auth_supernode_private_key:
        return
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    with contextlib.suppress(Exception):  # nothing is lost: the SuperLink will notice by itself
        key: Any = load_ssh_private_key(Path(options.auth_supernode_private_key).read_bytes(), None)
        with FleetHttpClient.from_server_address(
            options.superlink,
            options.insecure,
            options.root_certificates,
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
        ) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=int(remember.read_text())))


if __name__ == "__main__":
    main()
