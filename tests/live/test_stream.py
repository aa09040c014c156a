"""What a browser gets at its cursor."""

import pytest

from wardround.live.feed import Feed
from wardround.live.stream import Cursor

pytestmark = pytest.mark.usefixtures("always_searching")


def test_a_cursor_takes_only_what_is_new(read, only, messages_at, tmp_path, growing):
    run = growing().add(3)
    feed = Feed([tmp_path])
    found = only(feed)
    cursor = Cursor("boot")
    first = messages_at(feed, cursor, whole=[found.id])
    assert [event for event, _ in first] == ["runs", "log", "clients"]
    assert messages_at(feed, cursor, whole=[found.id]) == []
    run.add()
    read(feed)
    again = Cursor.of("boot", cursor.text)  # as a browser that lost its connection would ask
    kinds = [record["kind"] for event, data in messages_at(feed, again, whole=[found.id]) if event == "log"
             for record in data["entries"]]  # fmt: skip
    assert kinds == ["round", "cells"]
    other = Cursor.of("another server", cursor.text)
    assert messages_at(feed, other, whole=[found.id])[0][1]["first"]


def test_a_curve_beside_gets_rounds_alone(only, messages_at, tmp_path, growing):
    growing().add(3)
    feed = Feed([tmp_path])
    found = only(feed)
    ((_, data),) = [m for m in messages_at(feed, Cursor("boot"), curves=[found.id]) if m[0] != "runs"]
    assert {record["kind"] for record in data["entries"]} == {"round"}
