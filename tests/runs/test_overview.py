"""A run at a glance, while it is written."""

import json
import time

import pytest

from wardround.errors import ConfigError
from wardround.files import is_locked, locked
from wardround.records import ClientRecord, LeftOut, RoundRecord, Summary
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.overview import RunOverview
from wardround.runs.quarantine import quarantine

CONFIG = {
    "rounds": 5, "aggregator": {"name": "caac"}, "partition": {"name": "hospitals", "clients": 3},
    "privacy": {"dp": {"budget": 8.0}}, "federation": {"quorum": 2},
}  # fmt: skip


def one_round(number, flags=(), absent=(), **more):
    clients = [
        ClientRecord(number, name, "absent" if name in absent else "ok", "no answer" if name in absent else None,
                     num_samples=100, flag=name in flags, score=5.0, columns={"norm": 2.0})
        for name in "abc"
    ]  # fmt: skip
    left_out = {name: LeftOut("absent", "no answer") for name in absent}
    return RoundRecord(number, {"train": 2.0, "evaluate": 1.0}, {"auroc": 0.8}, left_out=left_out, clients=clients,
                       privacy={"epsilon": 0.5 * number}, **more)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "heart-1234")
    folder.path.mkdir()
    folder.write_config(CONFIG)
    return folder


def test_no_run(tmp_path):
    with pytest.raises(ConfigError, match="no run is here"):
        RunOverview.read(tmp_path)


def test_rounds_clients_and_events(folder):
    audit = AuditLog(folder.path / "audit.jsonl")
    audit.append("run-started", run="x", round=0)
    for name in "abc":
        audit.append("joined", client=name, samples=100)
    audit.append("refused", client="d", reason="its key is not registered")
    run = RunOverview.read(folder.path)
    assert (run.round, run.rounds, run.expected, run.present, run.status) == (0, 5, 3, 3, "not started")
    assert run.seconds_left() is None
    folder.append(one_round(1, flags=("b",)))
    folder.append(one_round(2, flags=("b",), absent=("c",), skipped="too few"))
    audit.append("received", round=2, clients={"a": {"norm": 1e39, "samples": 90}})
    audit.append("disconnected", client="c")
    audit.append("quorum-missed", round=3, reason="1 of 3", retry_in_seconds=10)
    new = run.poll()
    assert [record.round for record in new] == [1, 2]
    assert [one.client for one in new[1].clients] == ["a", "b", "c"]
    b, c = run.clients["b"], run.clients["c"]
    assert (b.flags, b.last_flag, b.rounds) == (2, 2, 2)
    assert "score 5" in b.flag_reason
    assert (c.absent, c.status, c.reason, c.connected, c.rounds) == (1, "absent", "no answer", False, 1)
    assert run.clients["a"].norm == 2.0, "of the last record"
    assert run.present == 2
    assert run.refused == {"d": "its key is not registered"}
    assert (run.skipped, run.retries, run.waiting) == (1, 1, "1 of 3")
    assert (run.epsilon, run.budget) == (1.0, 8.0)
    assert run.seconds == {"train": 4.0, "evaluate": 2.0}
    assert run.seconds_left() == 9.0  # three rounds of three seconds
    audit.append("joined", client="d", samples=5)
    audit.append("connected", client="c")
    assert run.poll() == []
    assert run.refused == {}
    assert run.clients["c"].connected is True
    quarantine(folder.path, "b", "scanner in doubt")
    assert run.quarantined == {"b": "scanner in doubt"}
    folder.write_summary(Summary("stopped", 2, "Ctrl-C"))
    run.poll()
    assert (run.status, run.seconds_left()) == ("stopped", 0.0)


def test_time_between_rounds_counts_where_it_is_known(folder):
    lines = [{"event": "weights", "time": when, "clients": {}} for when in (100.0, 110.0, 130.0)]
    (folder.path / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.append(one_round(1))
    assert RunOverview.read(folder.path).seconds_per_round() == 15.0


def test_clients_that_are_read_before_their_round_belong_to_it(folder):
    record = one_round(1)
    lines = "".join(json.dumps(client.line()) + "\n" for client in record.clients)
    folder.clients_path.write_text(lines)
    run = RunOverview.read(folder.path)
    assert run.clients == {}
    folder.rounds_path.write_text(json.dumps(record.line()) + "\n")
    (new,) = run.poll()
    assert len(new.clients) == 3
    assert run.clients["a"].rounds == 1


def test_files_that_were_cut_are_read_again(folder):
    folder.append(one_round(1, flags=("b",)))
    folder.append(one_round(2, flags=("b",)))
    run = RunOverview.read(folder.path)
    assert run.clients["b"].flags == 2
    for path in (folder.rounds_path, folder.clients_path):
        first = [
            line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["round"] == 1
        ]
        path.write_text("".join(first))
    assert [record.round for record in run.poll()] == [1]
    assert (run.round, run.clients["b"].flags) == (1, 1)


def test_running_is_whoever_holds_the_lock(folder):
    folder.append(one_round(1))
    run = RunOverview.read(folder.path)
    assert run.status == "killed"
    with folder.locked():
        run.poll()
        assert run.status == "running"
        assert run.seconds_left() == 12.0
    run.poll()
    assert not run.is_running


def test_asking_for_a_lock_takes_none(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
    assert not is_locked(path)


def test_what_the_gateway_counted(folder):
    run = RunOverview.read(folder.path)
    assert run.gateway_counters() == {}
    place = folder.path.parent / ".federation" / folder.path.name
    place.mkdir(parents=True)
    (place / "gateway.json").write_text('{"refused": 3, "bytes_in": 10, "words": "x"}')
    assert run.gateway_counters() == {"refused": 3, "bytes_in": 10}


def test_last_seen(folder):
    AuditLog(folder.path / "audit.jsonl").append("joined", client="a", samples=1)
    run = RunOverview.read(folder.path)
    assert run.age_of(run.clients["a"], time.time() + 60) == pytest.approx(60, abs=30)
