"""A hospital's node: takes the server's orders and brings them to the trainer, over Flower's own wire protocol.

Flower's `flower-supernode` is not used: it starts what the server sends it, and a process for every message. Nothing
that comes from the server is run here, and nothing is unpacked: an order is bytes for the trainer daemon, which checks
it against the hospital's policy, and so is the answer. To a SuperLink this is a SuperNode like any other (`wire.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message as Protobuf

from wardround.errors import ConfigError, WardroundError
from wardround.flower.environment import release_memory
from wardround.flower.hospital.trainer_daemon import ask, wait_for_trainer
from wardround.flower.messages import BLOB, HEAD_JSON, Note, pack
from wardround.flower.wire import (
    FLEET,
    Connection,
    RefusedRequest,
    Signer,
    config_record,
    import_messages_alone,
    reply_objects,
)
from wardround.flower.wire import read_config_record as read_record

if __name__ == "__main__":
    import_messages_alone()
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import heartbeat_pb2 as heartbeats
from flwr.proto import message_pb2 as messages
from flwr.proto.error_pb2 import Error
from flwr.proto.node_pb2 import Node as NodeNumber

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["Node", "main"]

HEARTBEAT = 10.0
"""Seconds, the shortest interval that a SuperLink accepts; it takes a node for gone after twice as long."""
BEATS_EVERY = 7.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 5.0
"""Seconds between two attempts to reach a server that is away."""
QUIET_SECONDS = 1.0
"""Between two questions for orders, where the server answers at once that there are none."""
REFUSED = 412
NOT_THERE = (502, 503, 504)
FAILED = 2
"""Flower's code for a client app that could not do its work."""
Ask = Callable[[bytes], bytes]
Response = TypeVar("Response", bound=Protobuf)


class NotAdmitted(WardroundError):
    """The server does not let this node in, and asking again does not help."""


class Node:
    """One connection of a hospital to its server.

    Args:
        address: Host and port of the server.
        authority: Certificate of the authority that signed the server's; None: no TLS.
        key: The hospital's private key; None: a new one, which the node registers itself.
        ask: Gives the trainer's answer to an order.
        number_file: Where the number is saved that the SuperLink gave this node.
    """

    def __init__(
        self,
        address: str,
        authority: Path | None,
        key: EllipticCurvePrivateKey | None,
        ask: Ask,
        number_file: Path,
    ) -> None:
        self.registers_itself = key is None
        self.signer = Signer(key or _new_key())
        self.ask, self.number_file = ask, number_file
        self.connection = Connection(address, authority, self.signer.headers)
        self._pulse = Connection(address, authority, self.signer.headers, timeout=5.0)
        self._stopped, self._unknown = threading.Event(), threading.Event()
        self.number: int | None = None

    def run(self) -> None:
        """Work on orders until stopped; reconnect for as long as it takes. Raises if the server refuses the key."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        wait = FIRST_WAIT
        try:
            while not self._stopped.is_set():
                try:
                    if self.number is None or self._unknown.is_set():
                        self._activate()
                    if self._work():
                        wait = FIRST_WAIT
                        release_memory()
                except RefusedRequest as refusal:
                    if refusal.status == REFUSED:
                        raise NotAdmitted(str(refusal)) from None
                    self._unknown.set()  # the SuperLink was started anew and has to be told who this is
                    self._pause(wait, str(refusal))
                    wait = min(2 * wait, LONGEST_WAIT)
                except OSError as error:
                    self._pause(wait, error.strerror or str(error) or type(error).__name__)
                    wait = min(2 * wait, LONGEST_WAIT)
        finally:
            self.stop()

    def stop(self) -> None:
        """Sign off."""
        self._stopped.set()
        if self.number is None:
            return
        number, self.number = self.number, None
        with contextlib.suppress(OSError, WardroundError):  # the SuperLink will notice by itself, only later
            self._deactivate(number)
            if self.registers_itself:
                request = fleet.UnregisterNodeFleetRequest(node_id=number)
                self._call("unregister-node", request, fleet.UnregisterNodeFleetResponse)
        self.connection.close()

    def _pause(self, seconds: float, reason: str) -> None:
        print(
            f"the server cannot be reached ({reason}); next attempt in {seconds:g} s",
            file=sys.stderr,
            flush=True,
        )
        self._stopped.wait(seconds)

    def _call(self, call: str, request: Protobuf, response: type[Response]) -> Response:
        return self.connection.call(FLEET + call, request, response)

    def _activate(self) -> None:
        """Tell the SuperLink that this node is there."""
        public = self.signer.public
        if self.registers_itself:
            with contextlib.suppress(RefusedRequest):  # it is registered already
                request = fleet.RegisterNodeFleetRequest(public_key=public)
                self._call("register-node", request, fleet.RegisterNodeFleetResponse)
        activation = fleet.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
        try:
            response = self._call("activate-node", activation, fleet.ActivateNodeResponse)
        except RefusedRequest as refusal:
            if refusal.status == REFUSED or not self.number_file.exists():
                raise
            # A SuperLink refuses a node that it believes to be online: the session of a node that was killed.
            self._deactivate(int(self.number_file.read_text()))
            response = self._call("activate-node", activation, fleet.ActivateNodeResponse)
        self.number = int(response.node_id)
        self.number_file.write_text(str(self.number))
        self._unknown.clear()

    def _deactivate(self, number: int) -> None:
        request = fleet.DeactivateNodeRequest(node_id=number)
        self._call("deactivate-node", request, fleet.DeactivateNodeResponse)

    def _beat(self) -> None:
        while not self._stopped.wait(BEATS_EVERY):
            if self.number is None:
                continue
            node = NodeNumber(node_id=self.number)
            request = heartbeats.SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT)
            path = FLEET + "send-node-heartbeat"
            with contextlib.suppress(OSError, WardroundError):  # the thread that works notices by itself
                if not self._pulse.call(path, request, heartbeats.SendNodeHeartbeatResponse).success:
                    self._unknown.set()

    def _work(self) -> bool:
        """Take an order, if there is one, and answer it. The server keeps the question open for a while."""
        begin, node = time.monotonic(), NodeNumber(node_id=self.number or 0)
        response = self._call(
            "pull-messages", fleet.PullMessagesRequest(node=node), fleet.PullMessagesResponse
        )
        if not response.messages_list:
            self._stopped.wait(max(0.0, QUIET_SECONDS - (time.monotonic() - begin)))
            return False
        received, order = time.monotonic(), response.messages_list[0].metadata
        task = f"{order.message_type} for round {order.group_id or '-'}"
        records: dict[str, bytes] = {}
        problem = "done"
        try:
            content = self._fetch(order, response.message_object_trees[0])
            self._confirm(order)
            records = {BLOB: config_record({BLOB: self.ask(content)})}
        except WardroundError as error:
            if isinstance(error, RefusedRequest):
                raise
            problem = str(error)
        self._answer(order, received, records, problem)
        print(f"{task}: {problem} ({time.monotonic() - received:.1f} s)", flush=True)
        return True

    def _fetch(self, order: messages.Metadata, tree: messages.ObjectTree) -> bytes:
        """The order as bytes for the trainer. An order is one record; its message and `RecordDict` tell nothing."""
        records = [record for content in tree.children for record in content.children]
        if len(records) != 1:
            raise WardroundError(f"an order of {len(records)} records; this version of wardround reads one")
        node = NodeNumber(node_id=self.number or 0)
        request = messages.PullObjectRequest(node=node, run_id=order.run_id, object_id=records[0].object_id)
        response = self._call("pull-object", request, messages.PullObjectResponse)
        if not response.object_available:
            raise WardroundError("the order has no content")
        if isinstance(blob := read_record(response.object_content, BLOB), bytes):
            return blob
        if isinstance(text := read_record(response.object_content, HEAD_JSON), str):
            with contextlib.suppress(ValueError):
                head = json.loads(text)
                if isinstance(head, dict):
                    return pack(Note(head))
        raise WardroundError("cannot be read: an order of another version of wardround")

    def _confirm(self, order: messages.Metadata) -> None:
        node = NodeNumber(node_id=self.number or 0)
        request = messages.ConfirmMessageReceivedRequest(
            node=node, run_id=order.run_id, message_object_id=order.message_id
        )
        self._call("confirm-message-received", request, messages.ConfirmMessageReceivedResponse)

    def _answer(
        self, order: messages.Metadata, received: float, records: dict[str, bytes], problem: str
    ) -> None:
        """Bring an answer to the server; try again while the server is away and still waits for it."""
        wait = FIRST_WAIT
        while True:
            try:
                self._push(order, received, records, problem)
                return
            except RefusedRequest as refusal:
                if refusal.status not in NOT_THERE:
                    raise
                reason = str(refusal)
            except OSError as error:
                reason = error.strerror or str(error) or type(error).__name__
            if time.monotonic() + wait > received + order.ttl or self._stopped.is_set():
                raise ConnectionError(reason)
            self._pause(wait, reason)
            wait = min(2 * wait, LONGEST_WAIT)

    def _push(
        self, order: messages.Metadata, received: float, records: dict[str, bytes], problem: str
    ) -> None:
        elapsed = time.monotonic() - received
        metadata = messages.Metadata(
            run_id=order.run_id,
            src_node_id=self.number or 0,
            dst_node_id=order.src_node_id,
            reply_to_message_id=order.message_id,
            group_id=order.group_id,
            message_type=order.message_type,
            # By the server's clock: a hospital whose own clock is wrong would send answers that have expired.
            created_at=order.created_at + elapsed,
            ttl=max(1.0, order.ttl - elapsed),
        )
        if order.HasField("src_task_id"):
            metadata.dst_task_id = order.src_task_id
        reply = messages.Message(metadata=metadata)
        if not records:
            reply.error.CopyFrom(Error(code=FAILED, reason=problem))
        chain, contents = reply_objects(reply, records)
        reply.metadata.message_id = chain[0]
        if records:
            reply.content.SetInParent()
        tree = messages.ObjectTree(object_id=chain[0])
        branch = tree
        for identity in chain[1:]:
            branch = branch.children.add(object_id=identity)
        node = NodeNumber(node_id=self.number or 0)
        request = fleet.PushMessagesRequest(
            node=node, messages_list=[reply], message_object_trees=[tree], clientapp_runtime_list=[elapsed]
        )
        response = self._call("push-messages", request, fleet.PushMessagesResponse)
        for identity in response.objects_to_push:
            upload = messages.PushObjectRequest(
                node=node, run_id=order.run_id, object_id=identity, object_content=contents[identity],
                session_id=response.session_id,
            )  # fmt: skip
            self._call("push-object", upload, messages.PushObjectResponse)


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """The private key in a file that `wardround certs` or `ssh-keygen -t ecdsa` made."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a private key ({error})") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not a key on an elliptic curve; make it by `wardround certs`")
    return key


def main(arguments: list[str] | None = None) -> None:
    """Run a hospital's node until stopped."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.hospital.supernode")
    parser.add_argument("--superlink", required=True, help="host and port of the server")
    parser.add_argument(
        "--root-certificates", type=Path, help="the authority that signed the server's certificate"
    )
    parser.add_argument("--private-key", type=Path, help="the hospital's key")
    parser.add_argument("--trainer-socket", type=Path, required=True)
    parser.add_argument("--node-id-file", type=Path, required=True)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    try:
        key = None if options.private_key is None else read_private_key(options.private_key)
        socket: Path = options.trainer_socket
        node = Node(
            options.superlink,
            options.root_certificates,
            key,
            lambda order: ask(socket, order),
            options.node_id_file,
        )
        with contextlib.suppress(KeyboardInterrupt):
            # A server that knows this hospital sends an order as soon as it is there.
            wait_for_trainer(socket)
            node.run()
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
