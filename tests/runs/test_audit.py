"""The audit log: whatever is done to it behind its back shows, and a killed writer does no harm."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import pytest

from wardround.errors import WardroundError
from wardround.runs.audit import (
    LONGEST_LINE,
    AuditLog,
    head_of,
    read_shown_heads,
    verify,
    verify_against,
)


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(5):
        log.append("sent", client=f"hospital-{number:02d}", norm=1.5 * number)
    return log


def tamper(log, change):
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(change(lines)))


def test_lines_are_json_with_their_fields(log):
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[3]["client"] == "hospital-03"
    assert lines[3]["norm"] == 4.5
    assert lines[3]["previous"] == lines[2]["hash"]
    assert verify(log.path) == 5
    assert head_of(log.path) == lines[-1]["hash"]


def test_what_json_cannot_say_becomes_null(log):
    log.append("sent", client="hospital-05", norm=float("nan"))
    assert json.loads(log.path.read_text().splitlines()[-1])["norm"] is None
    assert verify(log.path) == 6


def test_fields_may_not_hide_the_chain(log):
    with pytest.raises(ValueError, match="hash"):
        log.append("sent", hash="mine")


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b"hospital-02", b"hospital-99"), *lines[3:]], 3),
        (lambda lines: [*lines[:4], lines[4].replace(b"6.0", b"0.1")], 5),
        (lambda lines: [*lines[:1], *lines[2:]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [*lines[:3], b"\n", *lines[3:]], 4),
        (lambda lines: [*lines[:3], b'{"line": 4}\n', *lines[4:]], 4),
        (lambda lines: [*lines[:4], lines[4][:-1]], 5),
        (lambda lines: [*lines[:4], lines[4][:20]], 5),
    ],
    ids=[
        "edit",
        "edit-last",
        "remove",
        "remove-first",
        "swap",
        "repeat",
        "empty",
        "foreign",
        "no-newline",
        "cut",
    ],
)
def test_tampering_is_found_where_it_was_done(log, change, broken):
    tamper(log, change)
    with pytest.raises(WardroundError, match=f"line {broken} "):
        verify(log.path)


def test_a_shortened_or_rewritten_log_is_found_by_its_head(log):
    head = head_of(log.path)
    log.append("sent", client="hospital-05")
    assert verify(log.path, head) == 6  # it went on since
    tamper(log, lambda lines: lines[:4])
    assert verify(log.path) == 4  # nothing shows without the head
    with pytest.raises(WardroundError, match="cut off, or it was written anew"):
        verify(log.path, head)


def resealed(change):
    """What an attacker does who can write the file: change lines, and compute all later hashes anew."""

    def rewrite(lines):
        lines, previous = change([line.decode() for line in lines]), "0" * 64
        for number, line in enumerate(lines, start=1):
            values = {**json.loads(line), "line": number, "previous": previous}
            values.pop("hash")
            body = json.dumps(values)[:-1]
            previous = hashlib.sha256(body.encode()).hexdigest()
            yield f'{body}, "hash": "{previous}"}}\n'.encode()

    return rewrite


def edit(number):
    def change(lines):
        place = number - 1
        edited = lines[place].replace("hospital-0", "hospital-9")
        assert edited != lines[place]
        return [*lines[:place], edited, *lines[place + 1 :]]

    return change


def test_sealing_anew_what_is_unchanged_gives_the_same_bytes(log):
    before = log.path.read_bytes()
    tamper(log, resealed(lambda lines: lines))
    assert log.path.read_bytes() == before, "or the tests below would test something else"


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_line_that_is_edited_and_resealed_is_found_by_a_head_noted_elsewhere(log, number):
    head = head_of(log.path)
    tamper(log, resealed(edit(number)))
    assert verify(log.path) == 5, "the chain is whole again"
    assert head_of(log.path) != head
    with pytest.raises(WardroundError, match=f"none of its 5 lines has the hash {head}"):
        verify(log.path, head)


def test_a_noted_head_says_nothing_of_later_lines(log):
    head = head_of(log.path)
    log.append("sent", client="hospital-05")
    log.append("sent", client="hospital-06")
    tamper(log, resealed(edit(6)))
    assert verify(log.path, head) == 7, "which is why the newest head is the one to note"
    tamper(log, resealed(edit(5)))
    with pytest.raises(WardroundError, match="written anew"):
        verify(log.path, head)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (resealed(edit(2)), 5),
        (resealed(edit(5)), 5),
        (resealed(lambda lines: [*lines[:1], *lines[2:]]), 4),
        (lambda lines: lines[:4], 4),
        (lambda lines: [], 0),
    ],
    ids=["edited", "edited-last", "removed", "cut", "emptied"],
)
def test_a_running_writer_notices_that_its_log_was_rewritten(log, change, lines):
    head = head_of(log.path)
    tamper(log, change)
    log.append("sent", client="hospital-05")
    log.append("sent", client="hospital-06")
    events = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["event"] for line in events[lines:]] == ["log-rewritten", "sent", "sent"], "said once"
    assert (events[lines]["missing_line"], events[lines]["missing_hash"]) == (5, head)
    assert verify(log.path) == lines + 3


def test_a_removed_log_is_noticed_too(log):
    log.path.unlink()
    log.append("sent", client="hospital-05")
    events = [json.loads(line)["event"] for line in log.path.read_text().splitlines()]
    assert events == ["log-rewritten", "sent"]


def test_lines_of_another_writer_are_no_rewriting(log):
    for number in range(3):
        AuditLog(log.path).append("quarantined", client=f"hospital-0{number}")
        log.append("sent", client="hospital-05")
    events = [json.loads(line)["event"] for line in log.path.read_text().splitlines()]
    assert events == ["sent"] * 5 + ["quarantined", "sent"] * 3
    assert verify(log.path) == 11


@pytest.mark.parametrize("left", [1, 40, -1])
def test_a_half_written_line_is_closed_off_and_the_chain_goes_on(log, left):
    tamper(log, lambda lines: [*lines[:4], lines[4][:left]])
    AuditLog(log.path).append("started")
    assert verify(log.path) == 6
    events = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["event"] for line in events[4:]] == ["torn-line", "started"]
    assert events[4]["text"].startswith("{")


def test_only_a_fragment_in_the_file(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.path.write_bytes(b'{"line": 1, "ti')
    log.append("started")
    assert verify(log.path) == 2


def test_a_last_line_of_something_else_is_not_appended_to(log):
    with open(log.path, "a") as file:
        file.write("hello\n")
    with pytest.raises(WardroundError, match="keep the file as evidence"):
        log.append("sent")
    assert log.path.read_text().endswith("hello\n")


def test_lines_longer_than_a_read(log):
    for _ in range(3):
        log.append("weights", weights=[0.123456789] * 20_000)
    assert verify(log.path) == 8


def test_a_missing_log_is_one_line(tmp_path):
    with pytest.raises(WardroundError, match="No such file"):
        verify(tmp_path / "audit.jsonl")


def _append_many(path, name):
    for number in range(40):
        AuditLog(path).append("sent", client=name, number=number)


@pytest.mark.slow
def test_several_processes_write_one_chain(tmp_path):
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(path, f"w{i}")) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert verify(path) == 120


@pytest.mark.slow
def test_a_killed_writer_leaves_a_log_that_goes_on(tmp_path):
    path = tmp_path / "audit.jsonl"
    code = (
        "import sys; from pathlib import Path; from wardround.runs.audit import AuditLog\n"
        "while True: AuditLog(Path(sys.argv[1])).append('sent', data='x' * 5000)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 120
        while not (path.exists() and path.stat().st_size > 50_000) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    whole = path.read_bytes().count(b"\n")
    assert whole >= 5
    AuditLog(path).append("started")
    assert verify(path) >= whole + 1


def sealed_line(number, previous, text):
    """A line with any content and a right hash, as whoever can write the file would make it."""
    body = f'{{"line": {number}, "event": "sent", "x": {text}, "previous": "{previous}"'.encode()
    return body + f', "hash": "{hashlib.sha256(body).hexdigest()}"}}\n'.encode()


HOSTILE = {
    "deep": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "long": (json.dumps("x" * (LONGEST_LINE + 1)), "longer than"),
    "long-number": ("9" * 10_000, "line 6 is broken|last line"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_deep_and_huge_lines_are_refused_in_one_line(log, kind):
    text, words = HOSTILE[kind]
    with open(log.path, "ab") as file:
        file.write(sealed_line(6, head_of(log.path), text))
    size = log.path.stat().st_size
    for check in (verify, head_of):
        with pytest.raises(WardroundError, match=words) as refused:
            check(log.path)
        assert "line 6 is broken" in str(refused.value)
        assert len(str(refused.value)) < 1000
        assert "\n" not in str(refused.value)
    for write in (lambda: log.append("sent"), log.head):
        with pytest.raises(WardroundError, match="no line of an audit log") as refused:
            write()
        assert len(str(refused.value)) < 1000
    assert log.path.stat().st_size == size, "nothing is added to it"


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_huge_file_without_lines_is_not_read_whole(tmp_path, end):
    log = AuditLog(tmp_path / "audit.jsonl")
    with open(log.path, "wb") as file:
        file.truncate(2**28)  # takes no space on the disk
        file.seek(0, os.SEEK_END)
        file.write(end)
    tracemalloc.start()
    try:
        for ask in (lambda: verify(log.path), lambda: log.append("sent"), log.head):
            with pytest.raises(WardroundError, match="longer than"):
                ask()
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_what_could_not_be_read_is_not_written(log):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for fields, words in (({"x": deep}, "nested too deeply"), ({"x": "y" * LONGEST_LINE}, "longer than")):
        with pytest.raises(WardroundError, match=f"event sent .*{words}"):
            log.append("sent", **fields)
    log.append("sent", x="y" * (LONGEST_LINE - 1000))
    assert verify(log.path) == 6
    while deep:  # taken apart by hand: C would take it apart by recursion
        deep = deep[0]


def shown(path, *heads, run="run:fed-1"):
    """A hospital's log with these heads."""
    lines = [{"kind": "hello"}, *({"kind": "train", "run": run, "audit": list(head)} for head in heads)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tra')
    return path


def test_a_rewritten_log_is_found_by_what_a_hospital_was_shown(log, tmp_path):
    heads = [AuditLog(tmp_path / "new.jsonl").head(), log.head()]
    log.append("sent", client="hospital-05")
    heads.append(log.head())
    log.append("sent", client="hospital-06")
    read = read_shown_heads(shown(tmp_path / "outgoing.jsonl", *heads))["run:fed-1"]
    assert [(head.line, head.hash) for head in read] == heads
    assert heads[0][0] == 0
    assert verify_against(log.path, read) == 7
    before = log.path.read_bytes()
    for change, words in (
        (lambda lines: lines[:5], r"line 6, .*\(line 4 of its log\), is not among its 5 lines"),
        (resealed(edit(6)), r"line 6, .*has another hash"),
        (resealed(edit(2)), r"line 5, .*\(line 3 of its log\), has another hash"),
    ):
        tamper(log, change)
        verify(log.path)  # nothing shows without the hospital
        with pytest.raises(WardroundError, match=words):
            verify_against(log.path, read)
        log.path.write_bytes(before)
    tamper(log, resealed(edit(7)))
    assert verify_against(log.path, read) == 7, "which the hospital never saw"


@pytest.mark.parametrize(
    "line", ["[]", "nothing", '{"audit": 3}', '{"audit": ["a", 3]}', '{"audit": [1]}', "[" * 9999]
)
def test_what_is_no_hospitals_log_is_an_error(tmp_path, line):
    path = tmp_path / "outgoing.jsonl"
    path.write_text('{"kind": "hello"}\n' + line + "\n")
    with pytest.raises(WardroundError, match="line 2 is no line of a hospital's log"):
        read_shown_heads(path)
