"""The grid in one process: every node keeps its own state, and an app that fails costs one reply."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from wardround.flower.inline_grid import InlineGrid


@pytest.fixture
def grid():
    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_id == 3:
            raise ValueError("broken")
        calls = int(context.state.config_records["calls"]["n"]) + 1 if "calls" in context.state else 1
        context.state["calls"] = ConfigRecord({"n": calls})
        content = ConfigRecord({"n": calls, "part": context.node_config["partition-id"]})
        return Message(RecordDict({"reply": content}), reply_to=message)

    return InlineGrid(app, 2, {"key": "value"})


def send(grid):
    return [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]


def test_nodes_keep_their_state_and_errors_are_replies(grid):
    assert [node.node_id for node in grid.get_nodes()] == [2, 3]
    for number in (1, 2):
        good, bad = grid.send_and_receive(send(grid))
        assert dict(good.content["reply"]) == {"n": number, "part": 0}
        assert bad.error.reason == "ValueError: broken"
        assert good.metadata.src_node_id == 2


def test_a_reply_is_given_once(grid):
    message_ids = list(grid.push_messages(send(grid)))
    assert len(list(grid.pull_messages(message_ids[:1]))) == 1
    assert len(list(grid.pull_messages(message_ids))) == 1
    assert list(grid.pull_messages([*message_ids, "unknown"])) == []
