"""A federation in one process: small data, a grid whose nodes can misbehave, a clock that need not be waited for."""

import copy
import json
from collections.abc import Callable

import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from tests.flower.deployment import Deployment

from wardround.flower.client_app import app
from wardround.flower.config import federation_from
from wardround.flower.inline_grid import InlineGrid
from wardround.flower.messages import BLOB, from_records
from wardround.flower.server.run import run_federation

SMALL = {
    "name": "small",
    "dataset": {"name": "synthetic", "samples": 400, "features": 6},
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.01},
    "rounds": 3,
}


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self):
        self.time, self.naps = 0.0, []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.time += max(seconds, 0.01)


def unfolded(content):
    """The same note as records that tests can look into and change: `config`, `metrics`, `arrays`."""
    if BLOB not in content:
        return content
    note = from_records(content)
    records = RecordDict()
    if note.head:
        records["config"] = ConfigRecord({"json": json.dumps(note.head)})
    if note.metrics:
        records["metrics"] = MetricRecord(dict(note.metrics))
    if note.arrays:
        records["arrays"] = ArrayRecord({name: Array(array) for name, array in note.arrays.items()})
    return records


def unfolded_message(message):
    if not message.has_content():
        return message
    copied = copy.copy(message)
    copied.__dict__.update(_metadata=message.metadata, _content=unfolded(message.content))
    return copied


class FaultyGrid(InlineGrid):
    """A grid whose nodes misbehave.

    `faults`: node → function of an order and its honest replies that returns other replies; `offline`: nodes that are
    not connected; `later`: replies that come with the next pull; `seen`: all messages.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.faults: dict[int, Callable[[Message, list[Message]], list[Message]]] = {}
        self.offline: set[int] = set()
        self.later: list[Message] = []
        self.seen: list[Message] = []

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.offline]

    def deliver(self, message):
        replies = super().deliver(message)
        fault = self.faults.get(message.metadata.dst_node_id)
        if fault is not None and message.metadata.message_type == "train":
            for reply in replies:
                if reply.has_content():
                    reply.content = unfolded(reply.content)
            replies = fault(unfolded_message(message), replies)
        self.seen += [unfolded_message(one) for one in (message, *replies)]
        return replies

    def pull_messages(self, message_ids):
        later, self.later = self.later, []
        return [*later, *super().pull_messages(message_ids)]


class Town:
    """A federation ready to run: `town.run()`; hospital i is node i + 2."""

    def __init__(self, tmp_path, values):
        federation = {
            "identity": "name",
            "poll_seconds": 1,
            "deadline_seconds": 30,
            "onnx": False,  # torch's exporter takes a second
            **values.pop("federation", {}),
        }
        self.text = yaml.safe_dump({**SMALL, **values, "federation": federation})
        self.config = federation_from(self.text)
        self.grid = FaultyGrid(app, self.config.clients, {"config-text": self.text})
        self.clock, self.out = Clock(), tmp_path / "runs"

    def run(self, listen=None):
        return run_federation(self.config, self.grid, self.out, listen, self.clock.now, self.clock.sleep)

    @property
    def folder(self):
        from wardround.runs.folder import RunFolder

        return RunFolder(self.out / self.config.run.run_name)

    def audit(self):
        return [json.loads(line) for line in (self.folder.path / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def town(tmp_path):
    return lambda **values: Town(tmp_path, values)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def deploy(tmp_path):
    made = []

    def make(names, **options):
        made.append(Deployment(tmp_path, names, **options))
        return made[-1]

    yield make
    for deployment in made:
        deployment.clean_up()
