"""The broker: replies in time are handed over, late, repeated and expired ones are not, and it always returns."""

import threading

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from wardround.flower.inline_grid import InlineGrid
from wardround.flower.messages import EVALUATE, HELLO, TRAIN, Note, to_records
from wardround.flower.server.broker import LIFETIME, Broker, Failure
from wardround.flower.server.doorbell import Bell

DEADLINE = 30.0


class Inbox(InlineGrid):
    """Messages that are sent are kept in `sent`; `pull_messages` returns what a test has put into `replies`."""

    def __init__(self):
        super().__init__(ClientApp(), 3)
        self.sent, self.replies, self.pulled = [], [], []

    def push_messages(self, messages):
        self.sent += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        self.pulled.append(set(message_ids))
        replies, self.replies = self.replies, []
        return replies

    def reply(self, number=-1, content=None):
        """Reply to the message with this position among those sent."""
        content = to_records(Note({"number": number})) if content is None else content
        self.replies.append(Message(content, reply_to=self.sent[number]))


@pytest.fixture
def grid():
    return Inbox()


@pytest.fixture
def unusable():
    return []


@pytest.fixture
def broker(grid, clock, unusable):
    return Broker(grid, 1.0, lambda *fields: unusable.append(fields), clock.now, clock.sleep)


def order(broker, kind=TRAIN, nodes=None, round=4):
    broker.send(Note({"kind": kind}), {"a": 2, "b": 3} if nodes is None else nodes, round, DEADLINE)


def collect(broker, kind=TRAIN):
    """Return what was handed over, by name, and who did not reply."""
    replies = {}
    missing = broker.collect(kind, DEADLINE, replies.__setitem__)
    return replies, missing


def test_replies_are_handed_over_by_name(broker, grid, clock, unusable):
    order(broker)
    grid.reply(0)
    grid.reply(1)
    replies, missing = collect(broker)
    assert {name: reply.head["number"] for name, reply in replies.items()} == {"a": 0, "b": 1}
    assert missing == set()
    assert clock.naps == [], "all are there: nothing to wait for"
    assert [message.metadata.dst_node_id for message in grid.sent] == [2, 3]
    assert {message.metadata.message_type for message in grid.sent} == {"train"}
    assert unusable == []


def test_nobody_is_waited_for_longer_than_the_deadline(broker, grid, clock):
    order(broker)
    grid.reply(0)
    replies, missing = collect(broker)
    assert list(replies) == ["a"]
    assert missing == {"b"}
    assert clock.now() == pytest.approx(DEADLINE)
    assert max(clock.naps) <= 1.0


def test_an_order_to_nobody_sends_nothing(broker, grid):
    order(broker, nodes={})
    assert grid.sent == []
    assert collect(broker) == ({}, set())


def test_a_late_reply_is_reported_and_not_used(broker, grid, unusable):
    order(broker)
    grid.reply(0)
    collect(broker)
    order(broker, nodes={"a": 2}, round=5)
    grid.reply(1)  # b's reply to round 4
    grid.reply(2)
    replies, missing = collect(broker)
    assert (list(replies), missing) == (["a"], set())
    assert unusable == [("late", "b", 4, "its answer to 'train' came after the deadline")]


def test_a_late_error_is_not_worth_a_line(broker, grid, unusable):
    order(broker)
    collect(broker)
    order(broker, nodes={"a": 2}, round=5)
    grid.reply(1, Error(2, "out of memory"))
    grid.reply(2)
    assert list(collect(broker)[0]) == ["a"]
    assert unusable == []


def test_a_repeated_reply_is_reported_and_not_used(broker, grid, unusable):
    order(broker)
    grid.reply(0)
    grid.reply(0, to_records(Note({"number": 99})))
    grid.reply(1)
    replies, _ = collect(broker)
    assert replies["a"].head["number"] == 0
    assert unusable == [("repeated", "a", 4, "it answered 'train' more than once")]


def test_a_late_reply_that_is_repeated_is_reported_as_both(broker, grid, unusable):
    order(broker)
    collect(broker)
    order(broker, nodes={"b": 3}, round=5)
    grid.reply(0)
    grid.reply(0)
    grid.reply(2)
    collect(broker)
    assert [(event, name, round) for event, name, round, _ in unusable] == [
        ("late", "a", 4),
        ("repeated", "a", 4),
    ]


def test_expired_orders_are_forgotten(broker, grid, clock, unusable):
    order(broker)
    collect(broker)
    clock.sleep(LIFETIME * DEADLINE)
    order(broker, nodes={"b": 3}, round=5)
    collect(broker)  # nothing came: what has expired is dropped with this look
    order(broker, nodes={"b": 3}, round=6)
    grid.reply(0)
    grid.reply(3)
    replies, _ = collect(broker)
    assert list(replies) == ["b"]
    assert unusable == [], "nobody waits for it any more"
    assert not any(message.metadata.message_id in grid.pulled[-1] for message in grid.sent[:2])


def test_a_node_that_never_said_its_name_is_pending_until_its_order_expires(broker, grid, clock):
    order(broker, HELLO, {"node:9": 4}, round=0)
    assert broker.introductions() == {}
    assert broker.pending(HELLO) == {"node:9"}
    assert broker.pending(TRAIN) == set()
    clock.sleep(LIFETIME * DEADLINE + 1)
    assert broker.introductions() == {}
    assert broker.pending(HELLO) == set(), "it may be asked again"


def test_introductions_are_given_once(broker, grid):
    order(broker, HELLO, {"node:9": 4}, round=0)
    grid.reply(0)
    assert list(broker.introductions()) == ["node:9"]
    assert broker.introductions() == {}
    assert broker.pending(HELLO) == set()


def test_introductions_that_come_during_a_round_are_kept(broker, grid):
    order(broker, HELLO, {"node:9": 4}, round=0)
    order(broker)
    for number in range(3):
        grid.reply(number)
    replies, missing = collect(broker)
    assert (set(replies), missing) == ({"a", "b"}, set())
    assert broker.introductions()["node:9"].head["number"] == 0


def test_a_round_does_not_wait_for_orders_of_another_kind(broker, grid, clock):
    order(broker, EVALUATE)
    order(broker, nodes={"a": 2})
    grid.reply(2)
    assert collect(broker)[1] == set()
    assert clock.naps == []
    assert broker.pending(EVALUATE) == {"a", "b"}


def test_a_reply_to_an_unknown_order_is_ignored(broker, grid, unusable):
    order(broker)
    grid.reply(0)
    grid.replies[0].metadata.__dict__["_reply_to_message_id"] = "unknown"
    grid.reply(1)
    replies, missing = collect(broker)
    assert (list(replies), missing, unusable) == (["b"], {"a"}, [])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Error(5, "offline"), "it went offline"),
        (Error(2, "out  of\nmemory"), "it failed: out of memory"),
        (Error(2, ""), "it failed: no reason given"),
        (Error(2, "x" * 999), "it failed: " + "x" * 200),
        (RecordDict({"config": ConfigRecord({"json": "[1]"})}), "its answer its head is no mapping"),
    ],
)
def test_failures_have_a_reason(broker, grid, content, reason):
    order(broker, nodes={"a": 2})
    grid.reply(0, content)
    assert collect(broker)[0] == {"a": Failure(reason)}


class FakeBell(Bell):
    """A gateway that has said what a test says."""

    works = True

    def __init__(self, clock):
        super().__init__(None, clock.sleep)
        self.rung = []

    def ring(self, nodes):
        self.rung.append(list(nodes))

    def answered(self, *orders):
        for order in orders:
            self.rings.hear({"answered": order})


@pytest.fixture
def bell(clock):
    return FakeBell(clock)


@pytest.fixture
def rung_broker(grid, clock, unusable, bell):
    return Broker(grid, 1.0, lambda *fields: unusable.append(fields), clock.now, clock.sleep, bell)


def ids(grid):
    return [message.metadata.message_id for message in grid.sent]


def test_orders_are_rung_for(rung_broker, bell):
    order(rung_broker)
    assert bell.rung == [[2, 3]]


def test_only_replies_that_are_whole_are_fetched(rung_broker, grid, bell):
    """Flower waits for the rest of a half one, for minutes, and everyone else with it."""
    order(rung_broker)
    first, second = ids(grid)
    bell.rings.hear({"answering": first})
    bell.answered(second)
    grid.reply(1)
    replies, missing = collect(rung_broker)
    assert set(replies) == {"b"}
    assert missing == {"a"}
    assert grid.pulled[0] == {second}
    assert not any(first in pulled for pulled in grid.pulled), "not even when all others are looked for"


def test_others_are_looked_for_now_and_then(rung_broker, grid, bell, clock):
    """That a node has gone offline nobody rings for."""
    order(rung_broker)
    grid.replies.append(Message(Error(5, "offline"), reply_to=grid.sent[0]))
    grid.reply(1)
    replies, missing = collect(rung_broker)
    assert replies["a"] == Failure("it went offline")
    assert set(replies) == {"a", "b"}
    assert missing == set()
    assert clock.time < DEADLINE


def test_a_look_that_hangs_delays_nobody(rung_broker, grid, bell, clock):
    order(rung_broker)
    first, second = ids(grid)
    released, looks = threading.Event(), []

    def pull(message_ids):
        wanted = set(message_ids)
        if first in wanted and not looks:
            looks.append(wanted)
            bell.answered(second)  # meanwhile
            released.wait(60)
            return [Message(to_records(Note({"number": 0})), reply_to=grid.sent[0])]
        return [Message(to_records(Note({"number": 1})), reply_to=grid.sent[1])] if second in wanted else []

    grid.pull_messages = pull
    arrived = {}
    missing = rung_broker.collect(TRAIN, DEADLINE, arrived.__setitem__)
    assert looks
    assert set(arrived) == {"b"}
    assert missing == {"a"}
    released.set()
    rung_broker._sweeper.shutdown(wait=True)


def test_a_reply_that_the_other_thread_holds_is_not_lost(rung_broker, grid, bell, clock, unusable):
    """A SuperLink hands out a reply once: whoever asks second is told that there is no such order."""
    order(rung_broker, nodes={"a": 2})
    (only,) = ids(grid)
    asked_second = threading.Event()
    wait = bell.wait

    def pull(message_ids):
        if threading.current_thread() is not threading.main_thread():
            bell.answered(only)  # while this thread has the reply and is still fetching its parts
            assert asked_second.wait(60)
            return [Message(to_records(Note({"number": 0})), reply_to=grid.sent[0])]
        asked_second.set()
        return [Message(Error(3, "Message Unavailable"), reply_to=grid.sent[0])]

    def wait_for_both(seconds):
        if asked_second.is_set():
            rung_broker._sweep.exception(60)  # it has ended
        wait(seconds)

    grid.pull_messages, bell.wait = pull, wait_for_both
    replies, missing = collect(rung_broker)
    assert asked_second.is_set()
    assert replies["a"].head == {"number": 0}
    assert missing == set()
    assert unusable == []


def test_who_asks_first_is_believed(rung_broker, grid, bell, clock, unusable):
    """The other way round: the thread that looks for all others comes second."""
    order(rung_broker)
    bell.answered(ids(grid)[0])
    grid.reply(0)
    grid.reply(0, Error(3, "Message Unavailable"))
    grid.reply(1)
    replies, missing = collect(rung_broker)
    assert replies["a"].head == {"number": 0}
    assert set(replies) == {"a", "b"}
    assert missing == set()
    assert unusable == [], "it did not answer twice"


def test_an_order_that_the_superlink_does_not_know_is_a_lost_answer(broker, grid):
    order(broker)
    grid.reply(0, Error(3, "Message Unavailable"))
    grid.reply(1)
    assert collect(broker)[0]["a"] == Failure("its answer was lost on the way")


@pytest.mark.parametrize(("failures", "ends"), [(2, False), (3, True)])
def test_an_order_that_the_superlink_drops_half_way_is_sent_again(broker, grid, monkeypatch, failures, ends):
    """A SuperLink on a busy machine did it to a run with 20 hospitals. Flower's exception for it is private."""

    class Dropped(Exception):
        pass

    pushed, push = [], grid.push_messages

    def busy(messages):
        pushed.append(messages)
        if len(pushed) <= failures:
            raise Dropped
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", busy)
    if ends:
        with pytest.raises(Dropped):
            order(broker)
        assert len(pushed) == 3
        return
    order(broker)
    assert len(pushed) == 3
    grid.reply(0)
    grid.reply(1)
    assert collect(broker)[1] == set()
