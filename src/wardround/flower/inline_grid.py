"""A Flower Grid in one process, which calls the client app directly. For tests and for trying things out."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

__all__ = ["InlineGrid"]


class InlineGrid(Grid):
    """A grid of `nodes` nodes (2, 3, …), each with its own context. The app is called when its reply is pulled."""

    def __init__(
        self, client_app: ClientApp, nodes: int, run_config: Mapping[str, Any] | None = None
    ) -> None:
        # Flower stamps messages with the identity of the process's task, which a SuperLink would have set. This is
        # internal to Flower: if it changes, this grid breaks, but no federation does.
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.client_app = client_app
        self.contexts = {
            number + 2: Context(
                1,
                number + 2,
                {"partition-id": number, "num-partitions": nodes},
                RecordDict(),
                dict(run_config or {}),
            )
            for number in range(nodes)
        }
        self._pending: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing: an inline grid has no runs."""

    @property
    def run(self) -> NoReturn:
        raise NotImplementedError("an inline grid has no run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        message_ids = []
        for message in messages:
            message_id = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for message_id in list(message_ids):
            if message_id in self._pending:
                yield from self.deliver(self._pending.pop(message_id))

    def deliver(self, message: Message) -> list[Message]:
        """Return the replies to one message: the app's, or an error if it raised one."""
        try:
            return [self.client_app(message, self.contexts[message.metadata.dst_node_id])]
        except Exception as error:
            return [Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return list(self.pull_messages(self.push_messages(messages)))
