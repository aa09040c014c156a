"""Setting a client aside and letting it back in, while others write to the same run."""

import json
import threading

import pytest

from wardround.errors import ConfigError, WardroundError
from wardround.records import ClientRecord, RoundRecord, Summary
from wardround.runs.audit import AuditLog, verify
from wardround.runs.config import load_config
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import quarantine, quarantined, release
from wardround.runs.runner import run as run_simulation


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"name": "fed"})
    folder.append(RoundRecord(1, clients=[ClientRecord(1, f"hospital-{i:02d}") for i in range(3)]))
    return tmp_path


def events(run):
    return [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]


def test_a_client_is_set_aside_and_let_back_in(run):
    assert quarantined(run) == {}
    quarantine(run, "hospital-01", "broken scanner")
    assert quarantined(run) == {"hospital-01": "broken scanner"}
    release(run, "hospital-01", "scanner fixed")
    assert quarantined(run) == {}
    logged = [(line["event"], line["client"], line["reason"]) for line in events(run)]
    assert logged == [
        ("quarantined", "hospital-01", "broken scanner"),
        ("released", "hospital-01", "scanner fixed"),
    ]
    assert all(line["user"] for line in events(run))
    assert verify(run / "audit.jsonl") == 2


@pytest.mark.parametrize(
    ("act", "client", "reason", "words"),
    [
        (quarantine, "hospital-7", "why", "did you mean 'hospital-0"),
        (quarantine, "hospital-01", "  ", "--reason"),
        (quarantine, "hospital-00", "again", "already \\(first\\)"),
        (release, "hospital-02", "why", "not quarantined; did you mean 'hospital-00'"),
    ],
)
def test_mistakes_change_nothing(run, act, client, reason, words):
    quarantine(run, "hospital-00", "first")
    with pytest.raises(ConfigError, match=words):
        act(run, client, reason)
    assert quarantined(run) == {"hospital-00": "first"}
    assert len(events(run)) == 1


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        quarantine(tmp_path / "nowhere", "hospital-00", "why")


@pytest.mark.parametrize("act", [quarantine, release])
def test_a_finished_run_is_refused(run, act):
    quarantine(run, "hospital-00", "first")
    RunFolder(run).write_summary(Summary("finished"))
    with pytest.raises(ConfigError, match="this run is finished"):
        act(run, "hospital-00", "too late")
    assert quarantined(run) == {"hospital-00": "first"}
    assert len(events(run)) == 1


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_run_that_can_be_resumed_is_not_refused(run, status):
    RunFolder(run).write_summary(Summary(status))
    quarantine(run, "hospital-00", "before it is resumed")
    assert "hospital-00" in quarantined(run)


def test_before_the_first_round_any_name_will_do(tmp_path):
    RunFolder(tmp_path).write_config({"name": "fed"})
    quarantine(tmp_path, "hospital-09", "not yet audited")
    assert "hospital-09" in quarantined(tmp_path)


def test_a_broken_state_file_is_not_taken_for_nobody(run):
    (run / "quarantine.json").write_text("[1]")
    with pytest.raises(WardroundError, match=r"quarantine\.json"):
        quarantined(run)


def test_operators_and_the_coordinator_at_once(run):
    log = AuditLog(run / "audit.jsonl")
    clients = [f"hospital-{i:02d}" for i in range(3)]
    threads = [threading.Thread(target=quarantine, args=(run, c, "all at once")) for c in clients]
    for thread in threads:
        thread.start()
    for number in range(20):
        log.append("round", round=number)
    for thread in threads:
        thread.join()
    assert set(quarantined(run)) == set(clients)
    assert verify(log.path) == 23


def test_a_running_simulation_obeys_from_the_next_round_on(tiny, tmp_path):
    config = load_config(tiny)
    path = tmp_path / config.run_name

    def operate(record):
        if record.round == 2:
            quarantine(path, "hospital-01", "odd scanner")
        if record.round == 4:
            release(path, "hospital-01", "scanner fixed")

    folder = run_simulation(config, tmp_path, operate)
    lines = [line for line in folder.clients() if line.client == "hospital-01"]
    assert [line.status for line in lines] == ["ok", "ok", "quarantined", "quarantined", "ok", "ok"]
    assert [line.weight for line in lines[2:4]] == [0.0, 0.0]
    others = [line for line in folder.clients() if line.round in (3, 4) and line.client != "hospital-01"]
    assert sum(line.weight for line in others) == pytest.approx(2), "the others share what is free"
    assert folder.rounds()[2].left_out["hospital-01"].reason == "odd scanner"
    untouched = run_simulation(config, tmp_path / "untouched")
    assert untouched.rounds()[1].metrics == folder.rounds()[1].metrics
    assert untouched.rounds()[2].metrics != folder.rounds()[2].metrics
