"""What `serve` says of a round."""

import pytest

pytest.importorskip("flwr")

from wardround.flower.log import Log
from wardround.flower.server.console import AuditFollower, Message, RoundConsole, format_round, say
from wardround.records import ClientRecord, LeftOut, RoundRecord
from wardround.runs.audit import AuditLog
from wardround.runs.overview import RunOverview


def new_lines(follower):
    return [message.text for message in follower.new_messages()]


def test_the_audit_log_is_followed_in_words(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.append("joined", client="former", samples=1)
    follower = AuditFollower(log.path)
    assert new_lines(follower) == [], "what was there before is not repeated"
    log.append("joined", client="hospital-a", samples=120)
    log.append("received", round=1)
    log.append("quorum-missed", reason="1 of 3 have joined")
    with open(log.path, "ab") as file:
        file.write(b'{"line": 5, "event": "joi')  # a line that is being written
    assert new_lines(follower) == [
        "hospital-a joined (120 samples)",
        "too few hospitals: 1 of 3 have joined",
    ]
    assert new_lines(follower) == []


def test_warnings_say_whose_they_are(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    follower = AuditFollower(log.path)
    log.append("warning", topic="certificate", reason="expires in 12 days")
    log.append("warning", topic="clock", client="north", reason="60 s behind")
    log.append("warning-over", topic="clock", client="north")
    assert new_lines(follower) == [
        "WARNING: certificate: expires in 12 days",
        "WARNING: north: clock: 60 s behind",
        "north: clock: the warning is over",
    ]


def test_an_audit_log_that_is_not_there_yet(tmp_path):
    follower = AuditFollower(tmp_path / "audit.jsonl")
    assert new_lines(follower) == []
    AuditLog(tmp_path / "audit.jsonl").append("refused", client="x", reason="it said no name")
    assert new_lines(follower) == ["refused: x: it said no name"]


def test_a_round_in_one_line():
    assert format_round(RoundRecord(3), 5) == "round 3 of 5"
    assert format_round(RoundRecord(3, skipped="too few"), 5) == "round 3 of 5: skipped: too few"
    assert format_round(RoundRecord(3, warning="contested: why"), 5).endswith("contested: why")
    record = RoundRecord(3, left_out={"a": LeftOut("quarantined", "broken scanner")})
    assert format_round(record, 5) == "round 3 of 5: left out: a (quarantined: broken scanner)"


def clients(round=3, flags=(), norms=None, **statuses):
    names = ("a", "b", "c", "d")
    norms = norms or {"a": 1.0, "b": 1.1, "c": 0.9, "d": 1.2}
    return tuple(
        ClientRecord(round, name, statuses.get(name, "ok"), statuses.get(name) and "no answer",
                     flag=name in flags, score=9.0 if name in flags else 0.1, columns={"norm": norms[name]})
        for name in names
    )  # fmt: skip


def record(round=3, aurocs=None, **more):
    aurocs = aurocs or {"a": 0.8, "b": 0.9, "c": 0.85}
    per_client = {name: {"auroc": value} for name, value in aurocs.items()}
    middle = sorted(value for value in aurocs.values() if value is not None)
    metrics = {"auroc": middle[len(middle) // 2]}
    return RoundRecord(
        round, {"train": 4.0, "attack": 0.0, "evaluate": 1.25}, metrics, per_client=per_client, **more
    )


@pytest.fixture
def console(tmp_path):
    return RoundConsole(RunOverview(tmp_path), 10)


def test_who_took_part_how_long_and_over_how_many(console):
    (line,) = console.describe(
        record(clients=clients(d="absent"), left_out={"d": LeftOut("absent", "no answer")})
    )
    assert line.text == (
        "round 3 of 10: 3 of 4 hospitals; AUROC 0.850 (median of 3 hospitals); 5.2 s (train 4.0, evaluate 1.2); "
        "left out: d (no answer)"
    )
    assert line.event == "round"
    assert line.fields["took_part"] == ["a", "b", "c"]
    assert line.fields["evaluated_by"] == ["a", "b", "c"]


def test_who_was_flagged_and_why(console):
    (line,) = console.describe(
        record(clients=clients(flags=("b",), norms={"a": 1, "b": 30, "c": 1, "d": 1.1}))
    )
    assert "flagged: b (score 9; norm 30, the others 1)" in line.text


def test_aurocs_are_compared_over_the_same_hospitals(console):
    console.describe(record(3, {"a": 0.90, "b": 0.70, "c": 0.92}))
    (same,) = console.describe(record(4, {"a": 0.91, "b": 0.71, "c": 0.93}))
    assert "of the same" not in same.text
    # The hardest hospital is gone: the median rises, but nobody has a better model.
    (line,) = console.describe(record(5, {"a": 0.91, "c": 0.93}))
    assert "AUROC 0.930 (median of 2 hospitals), of the same 2 hospitals: 0.920 → 0.920" in line.text
    (unknown,) = console.describe(record(6, {"a": None, "c": 0.9}))
    assert "(median of 1 hospital), of the same 1 hospital: 0.930 → 0.900" in unknown.text


def test_an_update_out_of_all_proportion_is_news(console):
    norms = {"a": 1.0, "b": 1e39, "c": 0.9, "d": 1.2}
    _, news = console.describe(record(clients=clients(norms=norms)))
    assert news.text.strip().startswith("b sent an update of norm 1e+39, 1e+39 times the others' median (1)")
    assert news.event == "large-update"
    assert len(console.describe(record(clients=clients()))) == 1


def test_a_log_gets_the_fields_and_a_function_the_text(tmp_path, capsys):
    texts = []
    message = Message("hello", "greeting", {"who": "a"})
    say(texts.append, message)
    say(Log("serve", as_json=True), message)
    assert texts == ["hello"]
    assert '"event": "greeting", "message": "hello", "who": "a"' in capsys.readouterr().out
