"""Records of a run: what is written is read back, older folders are read, newer ones are refused."""

import dataclasses
import json
import math

import pytest

from wardround.errors import DataError
from wardround.records import (
    SCHEMA_VERSION,
    CalibrationBin,
    ClientRecord,
    EvaluationDetails,
    LeftOut,
    Reason,
    RoundRecord,
    Summary,
    check_schema,
)
from wardround.runs.folder import RunFolder

CLIENTS = (
    ClientRecord(
        3, "a", byzantine=True, attacking=True, num_samples=12, weight=0.1, score=7.5, flag=True,
        columns={"norm": 2.0, "threshold": None},
    ),
    ClientRecord(3, "b", "quarantined", "broken scanner", weight=0.0),
    ClientRecord(3, "c", "absent", "no answer within 30 s"),
)  # fmt: skip
ROUND = RoundRecord(
    3, {"train": 0.5, "aggregate": 0.1}, {"auroc": 0.75}, {"auroc": 0.7}, {"a": {"auroc": None}}, "too few",
    {"b": LeftOut("quarantined", "broken scanner"), "c": LeftOut("absent", "no answer within 30 s")},
    {"epsilon": 1.5}, 120.5, warning="contested", kappa=0.25, estimated_f=0,
    details=EvaluationDetails(
        {"auprc": Reason("one-class", "all 3 rows are well")},
        {"a": {"auroc": Reason("no-rows", "there are no rows to measure on")}},
        {"oedema": 0.25},
        (CalibrationBin(0.0, 0.1, 12, 0.05, 0.25),),
        {"sex": {"female": {"n": 4, "auroc": None, "reason": "4 rows, fewer than 20"}}},
        {"sex": {"auroc": None}},
    ),
)  # fmt: skip


def through_json(values):
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("record", CLIENTS)
def test_a_client_is_read_back_as_written(record):
    assert ClientRecord.from_line(through_json(record.line())) == record


def test_a_round_is_read_back_as_written_but_for_its_clients():
    assert RoundRecord.from_line(through_json(ROUND.line())) == ROUND
    with_clients = dataclasses.replace(ROUND, clients=CLIENTS)
    assert RoundRecord.from_line(through_json(with_clients.line())) == ROUND
    assert set(RoundRecord(1).line()) == {"round", "seconds", "metrics", "validation", "memory_mb"}


def test_only_a_model_without_finite_output_is_broken():
    def measured(auroc, reason=None):
        details = EvaluationDetails({} if reason is None else {"auroc": reason})
        return RoundRecord(1, metrics={"auroc": auroc}, details=details)

    assert not measured(0.5).is_broken
    assert measured(None, Reason("not-finite", "the output is not finite")).is_broken
    assert not measured(None, Reason("one-class", "all rows are well")).is_broken
    assert measured(None).is_broken, "a line of an older version, which gave no reasons"
    assert not RoundRecord(1).is_broken


def test_a_summary_is_read_back_as_written():
    summary = Summary(
        "stopped", 2, "interrupted", {"round": 2, "auroc": 0.5}, None, 1, {"tpr": 1.0}, None, 1, 3,
        {"peak_memory_mb": 10.0}, {"epsilon": 2.0},
    )  # fmt: skip
    values = through_json(summary.plain())
    assert values["schema"] == SCHEMA_VERSION
    assert Summary.from_plain(values) == summary
    assert not {"reason", "privacy"} & set(Summary("finished").plain())


@pytest.mark.parametrize(
    ("status", "finished", "diverged"),
    [
        ("finished", True, False),
        ("diverged", True, True),
        ("stopped", False, False),
        ("failed", False, False),
    ],
)
def test_a_diverged_run_is_finished_and_a_finished_one_need_not_have_diverged(status, finished, diverged):
    summary = Summary(status)
    assert (summary.finished, summary.diverged) == (finished, diverged)


def test_what_is_not_finite_is_written_as_null():
    record = ClientRecord(1, "a", score=math.inf, columns={"norm": math.nan})
    line = record.line()
    assert line["score"] is line["norm"] is None
    assert RoundRecord(1, metrics={"loss": math.nan}).line()["metrics"] == {"loss": None}


def test_a_field_and_a_column_have_one_name():
    record = CLIENTS[0]
    assert (record["score"], record["norm"], record.get("anomaly")) == (7.5, 2.0, None)
    assert "norm" in record
    assert "anomaly" not in record
    with pytest.raises(KeyError):
        record["anomaly"]


def test_a_folder_of_schema_1_is_read(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config_path.write_text("{name: old, record: {wardround: 0.1.0}}")
    clients = [
        {"round": 1, "client": "a", "byzantine": False, "attacking": False, "num_samples": 5, "weight": 1.0,
         "score": None, "flag": None, "dropped": None, "norm": 2.0},
        {"round": 1, "client": "b", "weight": 0.0, "dropped": "quarantined: broken scanner"},
        {"round": 1, "client": "c", "weight": 0.0, "dropped": "not finite"},
    ]  # fmt: skip
    folder.clients_path.write_text("".join(json.dumps(line) + "\n" for line in clients))
    dropped = {"b": "quarantined: broken scanner", "c": "not finite"}
    seconds = {"aggregate": 0.1, "plain_mean": 0.01}
    folder.rounds_path.write_text(json.dumps({"round": 1, "seconds": seconds, "dropped": dropped}) + "\n")
    overhead = {"aggregate_over_plain_mean": 10.0}
    folder.summary_path.write_text(json.dumps({"status": "finished", "rounds": 1, "overhead": overhead}))
    assert folder.config()["name"] == "old"
    fine, quarantined, dropped = folder.clients()
    assert (fine.status, fine.reason, dict(fine.columns)) == ("ok", None, {"norm": 2.0})
    assert (quarantined.status, quarantined.reason) == ("quarantined", "broken scanner")
    assert (dropped.status, dropped.reason) == ("dropped", "not finite")
    (record,) = folder.rounds()
    assert record.left_out == {
        "b": LeftOut("quarantined", "broken scanner"),
        "c": LeftOut("dropped", "not finite"),
    }
    assert folder.summary().finished


def test_a_folder_of_a_newer_schema_is_refused_in_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    newer = SCHEMA_VERSION + 1
    folder.config_path.write_text(f"record: {{schema: {newer}}}")
    with pytest.raises(DataError, match=rf"config.yaml: written in schema {newer}.*upgrade wardround"):
        folder.config()
    folder.summary_path.write_text(json.dumps({"schema": newer, "status": "finished"}))
    with pytest.raises(DataError, match=r"summary\.json: written in schema"):
        folder.summary()
    with pytest.raises(DataError):
        check_schema({"schema": "two"}, "there")


def test_a_status_nobody_knows_is_an_error():
    with pytest.raises(DataError, match="one of ok, dropped, absent, quarantined, got 'gone'"):
        RoundRecord.from_line({"round": 1, "left_out": {"a": {"status": "gone", "reason": "x"}}})


def test_a_half_written_line_is_left_out_and_a_broken_one_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.rounds() == folder.clients() == []
    folder.append(dataclasses.replace(ROUND, clients=CLIENTS))
    with open(folder.rounds_path, "a") as file:
        file.write('{"round": 4, "sec')
    assert folder.rounds() == [ROUND]
    assert folder.clients() == list(CLIENTS)
    folder.rounds_path.write_text('{"round": 4, "sec\n')
    with pytest.raises(DataError, match=r"rounds\.jsonl: damaged, line 1 is not a record"):
        folder.rounds()
