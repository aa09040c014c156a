"""A run folder written by hand, round by round, and how tests read it."""

import json
import time

import pytest
import yaml

from wardround.live import feed
from wardround.live.stream import new_messages
from wardround.runs.audit import AuditLog

PATIENCE = 90.0  # seconds


@pytest.fixture
def growing(tmp_path):
    """A run folder written by hand, round by round: `growing(name)` gives one."""
    return lambda name="run", **options: Growing(tmp_path / "runs" / name, **options)


class Growing:
    """Writes what a run writes, in the same order; client-0 attacks from round 3 on and is flagged."""

    def __init__(self, path, clients=4, rounds=10, attackers=1, federation=False, **config):
        self.path, self.done = path, 0
        self.clients = [f"client-{i}" for i in range(clients)]
        self.attackers = [] if federation else self.clients[:attackers]
        path.mkdir(parents=True)
        values = {
            "aggregator": {"name": "caac"},
            "attack": {"name": "sign-flip" if self.attackers else "none", "start": 3, "fraction": 0.25},
            "rounds": rounds,
            "seed": 0,
            **config,
            "record": {
                "attack": {"byzantine": self.attackers},
                "clients": {name: [5, 5] for name in self.clients},
            },
        }
        (path / "config.yaml").write_text(yaml.safe_dump(values))
        if federation:
            AuditLog(path / "audit.jsonl").append("joined", client=self.clients[0])

    def client_line(self, number, name):
        attacking = name in self.attackers and number >= 3
        return {
            "round": number, "client": name, "byzantine": name in self.attackers, "attacking": attacking,
            "num_samples": 10, "weight": 0.0 if attacking else 0.25, "score": 9.0 if attacking else 0.5,
            "flag": attacking, "status": "ok", "reason": None, "norm": 30.0 if attacking else 1.0 + number / 100,
        }  # fmt: skip

    def round_line(self, number):
        return {
            "round": number, "seconds": {"train": 0.5, "evaluate": 0.5}, "metrics": {"auroc": 0.5 + number / 100},
        }  # fmt: skip

    def add(self, count=1, **extra):
        for _ in range(count):
            self.done += 1
            self.append("clients.jsonl", *(self.client_line(self.done, name) for name in self.clients))
            self.append("rounds.jsonl", {**self.round_line(self.done), **extra})
        return self

    def append(self, file, *lines):
        with open(self.path / file, "a") as out:
            out.write("".join(json.dumps(line) + "\n" for line in lines))

    def finish(self, status="finished"):
        (self.path / "summary.json").write_text(json.dumps({"status": status, "rounds": self.done}))


@pytest.fixture
def wait_for():
    """Wait until a condition gives something."""

    def wait(condition):
        deadline = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)
        return value

    return wait


@pytest.fixture
def read():
    """Poll a feed until there is no more to read."""

    def poll(feed):
        while feed.poll():
            pass
        return feed

    return poll


@pytest.fixture
def only(read):
    """The only run of a feed, read to its end."""

    def get(feed, detailed=True):
        (run,) = read(feed).runs.values()
        if detailed:
            feed.read_details(run.id)
            read(feed)
        return run

    return get


@pytest.fixture
def entries():
    """The log of a run, all of it or one kind."""

    def get(run, kind=None):
        log = [json.loads(entry.text) for entry in run.log.entries]
        return [entry for entry in log if kind in (None, entry["kind"])]

    return get


@pytest.fixture
def messages_at():
    """What a browser at a cursor would get: (event, data) pairs."""

    def get(feed, cursor, **streams):
        messages = new_messages(
            feed, cursor, streams.get("whole", ()), streams.get("curves", ()), actions=False
        )
        parsed = [dict(line.split(": ", 1) for line in m.strip().split("\n")) for m in messages]
        return [(message["event"], json.loads(message["data"])) for message in parsed]

    return get


@pytest.fixture
def always_searching(monkeypatch):
    """Every poll searches for new runs."""
    monkeypatch.setattr(feed, "SEARCH", 0.0)
