"""Files of JSON lines as they grow, are cut, replaced and removed; nothing is read twice."""

import json
import os

from wardround.runs.tail import CHUNK, FINGERPRINT, Tail


def write(path, *numbers, mode="a", end="\n"):
    with open(path, mode) as file:
        file.write("\n".join(json.dumps({"n": n}) for n in numbers) + end)


def numbers(tail):
    found = []
    while True:
        new = tail.poll()
        found += [line["n"] for line in new.lines]
        if not new.more:
            return found


def test_each_line_comes_once(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    assert numbers(tail) == [], "a file that is not there yet has no lines"
    write(path, 1, 2)
    assert numbers(tail) == [1, 2]
    assert numbers(tail) == []
    write(path, 3)
    assert numbers(tail) == [3]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, 1, end='\n{"n": 2')
    assert numbers(tail) == [1]
    assert numbers(tail) == []
    with open(path, "a") as file:
        file.write('2}\n{"n"')
    assert numbers(tail) == [22]


def test_a_shorter_file_starts_again(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, 1, 2, 3)
    numbers(tail)
    write(path, 1, 2, mode="w")
    assert tail.poll().restarted
    assert numbers(tail) == [1, 2]


def test_a_replaced_file_that_grew_past_the_offset_is_noticed(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, 1, 2, 3)
    numbers(tail)
    write(tmp_path / "new", 7, 8, 9, 10)
    os.replace(tmp_path / "new", path)
    assert tail.poll().restarted
    assert numbers(tail) == [7, 8, 9, 10]


def test_a_copy_with_the_same_content_goes_on(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, 1, 2)
    numbers(tail)
    write(tmp_path / "new", 1, 2, 3)  # as `wardround run` does when it resumes and nothing was cut
    os.replace(tmp_path / "new", path)
    assert numbers(tail) == [3]


def test_a_removed_file_starts_again(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, 1)
    numbers(tail)
    path.unlink()
    assert tail.poll().restarted
    assert not tail.poll().restarted, "said once"
    write(path, 2)
    assert numbers(tail) == [2]


def test_lines_that_are_no_objects_are_counted_not_fatal(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    path.write_bytes(b'{"n": 1}\n[2]\nnot json\n\xff\xfe\n\n{"n": 3}\n')
    new = tail.poll()
    assert [line["n"] for line in new.lines] == [1, 3]
    assert new.unreadable == 3


def test_long_files_come_in_pieces_and_long_lines_whole(tmp_path):
    path, tail = tmp_path / "a.jsonl", Tail(tmp_path / "a.jsonl")
    write(path, "x" * (2 * CHUNK + 5), *range(100_000))
    new = tail.poll()
    assert len(new.lines[0]["n"]) == 2 * CHUNK + 5
    assert new.more
    assert numbers(tail)[-1] == 99_999


def test_a_look_costs_the_new_bytes_however_long_the_file_is(tmp_path):
    cost = []
    for size in (10, 10_000):
        path = tmp_path / f"{size}.jsonl"
        write(path, *range(size))
        tail = Tail(path)
        numbers(tail)
        before = tail.bytes_read
        write(path, 123_456)
        assert numbers(tail) == [123_456]
        cost.append(tail.bytes_read - before)
        idle = tail.bytes_read
        numbers(tail)
        assert tail.bytes_read == idle, "no news cost nothing"
    new = len('{"n": 123456}\n')
    assert max(cost) <= new + FINGERPRINT
