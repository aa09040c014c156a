"""One run folder as entries: made once, from new lines alone."""

import json

import pytest

from wardround.live.feed import Feed
from wardround.live.stream import Cursor
from wardround.runs.audit import AuditLog
from wardround.runs.quarantine import quarantine, release

pytestmark = pytest.mark.usefixtures("always_searching")


def test_rounds_clients_and_events_become_entries(only, entries, tmp_path, growing):
    growing(rounds=8).add(4).add(dropped={"client-2": "not finite"}, privacy={"epsilon": 0.7}).finish()
    run = only(Feed([tmp_path]))
    assert [record["round"] for record in entries(run, "round")] == [1, 2, 3, 4, 5]
    assert entries(run, "round")[-1]["epsilon"] == 0.7
    cells = entries(run, "cells")
    assert cells[0]["marks"] == "0000"
    assert cells[2]["marks"] == "1000"
    assert cells[2]["scores"] == [9, 0.5, 0.5, 0.5]
    assert cells[2]["clients"] is None, "everybody, in the order of the names"
    texts = [event["text"] for event in entries(run, "event")]
    assert "flagged: client-0" in texts
    assert "dropped client-2: not finite" in texts
    assert "the attack begins: sign-flip, client-0" in texts
    assert "finished" in texts
    row = json.loads(run.log.rows[0].text)
    assert (row["round"], row["samples"], row["norm"], row["score"], row["weight"]) == (5, 10, 30.0, 9.0, 0.0)
    assert row["mark"] == "1"
    assert row["why"] == "score 9; norm 30, the others 1.05"
    assert (row["flagged"], row["taken_part"]) == (3, 5)
    info = json.loads(run.info)
    assert (info["round"], info["rounds"], info["epsilon"], info["seconds_per_round"]) == (5, 8, 0.7, 1.0)


def test_clients_lines_wait_for_their_round(only, entries, tmp_path, growing):
    run = growing().add()
    found = only(Feed([tmp_path]))
    run.append("clients.jsonl", run.client_line(2, "client-0"))
    found.poll()
    assert len(entries(found, "cells")) == 1, "round 2 is still being written"
    run.append("clients.jsonl", *(run.client_line(2, name) for name in run.clients[1:]))
    run.append("rounds.jsonl", run.round_line(2))
    found.poll()
    assert len(entries(found, "cells")) == 2
    assert len(entries(found, "cells")[1]["scores"]) == 4


def test_some_clients_of_a_round_are_named_by_place(only, entries, tmp_path, growing):
    run = growing()
    run.append("clients.jsonl", run.client_line(1, "client-3"), run.client_line(1, "newcomer"))
    run.append("rounds.jsonl", run.round_line(1))
    found = only(Feed([tmp_path]))
    assert entries(found, "cells")[0]["clients"] == [3, 4]
    assert entries(found, "names")[-1] == {"kind": "names", "from": 4, "names": ["newcomer"]}


def test_an_appended_round_costs_its_own_bytes(only, tmp_path, growing):
    cost = {}
    for length in (5, 300):
        run = growing(str(length), rounds=1000).add(length)
        found = only(Feed([run.path]))
        before = found.bytes_read
        run.add()
        found.poll()
        cost[length] = found.bytes_read - before
    assert cost[300] <= cost[5] + 100


def test_a_run_that_starts_again_is_sent_again(read, only, entries, messages_at, tmp_path, growing):
    run = growing().add(5)
    feed = Feed([tmp_path])
    found = only(feed)
    cursor = Cursor("boot")
    messages_at(feed, cursor, whole=[found.id])
    for file in ("rounds.jsonl", "clients.jsonl"):  # what resuming from round 2 does
        lines = (run.path / file).read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["round"] <= 2]
        (run.path / f"{file}.tmp").write_text("".join(kept))
        (run.path / f"{file}.tmp").replace(run.path / file)
    read(feed)
    log = [data for event, data in messages_at(feed, cursor, whole=[found.id]) if event == "log"]
    assert log[0]["reset"]
    rounds = [
        record["round"] for message in log for record in message["entries"] if record["kind"] == "round"
    ]
    assert rounds == [1, 2]
    assert json.loads(found.info)["round"] == 2
    assert entries(found, "event")[0]["type"] == "resumed"


def test_a_federation_shows_its_operators_actions(read, only, entries, tmp_path, growing):
    run = growing(federation=True).add(2)
    feed = Feed([tmp_path])
    found = only(feed)
    assert json.loads(found.info)["federation"]
    quarantine(run.path, "client-1", "broken scanner")
    read(feed)
    assert json.loads(found.info)["quarantined"] == {"client-1": "broken scanner"}
    release(run.path, "client-1", "repaired")
    read(feed)
    assert json.loads(found.info)["quarantined"] == {}
    texts = [event["text"] for event in entries(found, "event")]
    assert any(text.startswith("client-1 quarantined: broken scanner") for text in texts)
    assert any(text.startswith("client-1 released: repaired") for text in texts)


def test_a_quarantine_does_not_make_a_simulation_a_federation(read, only, tmp_path, growing):
    run = growing().add(2)
    feed = Feed([tmp_path])
    found = only(feed)
    quarantine(run.path, "client-1", "broken scanner")
    read(feed)
    assert json.loads(found.info)["quarantined"] == {"client-1": "broken scanner"}
    assert not json.loads(found.info)["federation"]


@pytest.mark.parametrize("schema", [1, 2])
def test_a_quarantined_client_is_left_out_quietly(only, entries, tmp_path, growing, schema):
    run = growing(federation=True)
    reason = "broken scanner"
    if schema == 1:
        client = {"dropped": f"quarantined: {reason}"}
        round_ = {"dropped": {"client-1": f"quarantined: {reason}"}}
    else:
        client = {"status": "quarantined", "reason": reason}
        round_ = {"left_out": {"client-1": client}}
    without = {"norm", *(("status", "reason") if schema == 1 else ())}
    lines = [
        {k: v for k, v in run.client_line(1, name).items() if k not in without}
        | (client if name == "client-1" else {})
        for name in run.clients
    ]
    run.append("clients.jsonl", *lines)
    run.append("rounds.jsonl", {**run.round_line(1), **round_})
    log = AuditLog(run.path / "audit.jsonl")
    log.append("received", round=1, clients={"client-2": {"norm": 3.5, "samples": 10}})
    log.append("quarantine-applied", round=1, client="client-1", reason=reason)
    log.append("quorum-missed", round=2, reason="1 of 3 is there")
    found = only(Feed([tmp_path]))
    assert entries(found, "cells")[0]["marks"] == "0300"
    assert [event["type"] for event in entries(found, "event")] == ["joined", "quorum-missed"]
    assert json.loads(found.log.rows[2].text)["norm"] == 3.5, "where the rule has no norm, the audit log does"
    assert found.seen["client-2"] > 0
    assert json.loads(found.log.rows[1].text)["why"] == "quarantined: broken scanner"
    absent = {"status": "absent", "reason": "no answer within 600 s"}
    silent = {**run.client_line(2, "client-2"), **absent, "flag": None}
    run.append("clients.jsonl", silent)
    run.append("rounds.jsonl", run.round_line(2))
    found.poll()
    assert json.loads(found.log.rows[2].text)["round"] == 1, "it was not seen in round 2"


def test_hostile_lines_do_not_stop_the_page(read, only, entries, tmp_path, growing):
    run = growing()
    hostile = {"round": 1, "client": "</script>" * 100, "score": "high", "weight": float("nan"), "flag": True}
    run.append("clients.jsonl", {"round": "one", "client": "x"}, {"round": 1, "client": 7}, hostile)
    run.append("rounds.jsonl", {"round": 1, "seconds": [], "metrics": "good", "dropped": 3}, {"no": "round"})
    left_out = {"a": 3, "b": {"status": "gone"}, "c": {"status": "dropped", "reason": ["?"]}}
    run.append("rounds.jsonl", {"round": 1, "left_out": left_out}, {"round": 1, "left_out": "all"})
    (run.path / "summary.json").write_text("[1, 2]")
    (run.path / "audit.jsonl").write_text('{"event": 3, "client": [], "time": "now"}\n')
    found = only(Feed([tmp_path]))
    (cells,) = entries(found, "cells")
    assert (cells["scores"], cells["weights"]) == ([None], [None])
    assert found.unreadable == 3
    assert max(map(len, found.names)) == 200
    (run.path / "config.yaml").write_text("{")
    read(Feed([tmp_path]))


def test_open_warnings_of_a_federation_are_shown(read, only, tmp_path, growing):
    run = growing(federation=True).add(1)
    audit = AuditLog(run.path / "audit.jsonl")
    audit.append("warning", topic="certificate", reason="server.pem: expires in 12 days")
    audit.append("warning", topic="clock", client="north", reason="60 s behind the server's")
    audit.append("version-differs", client="south", reason="it runs wardround 0.0.9")
    feed = Feed([tmp_path])
    found = only(feed)
    assert json.loads(found.info)["warnings"] == [
        "certificate: server.pem: expires in 12 days",
        "north: clock: 60 s behind the server's",
        "south: version: it runs wardround 0.0.9",
    ]
    audit.append("warning-over", topic="certificate")
    audit.append("version-agrees", client="south")
    read(feed)
    assert json.loads(found.info)["warnings"] == ["north: clock: 60 s behind the server's"]
    run.finish()
    read(feed)
    assert json.loads(found.info)["warnings"] == [], "nobody has to do anything any more"
