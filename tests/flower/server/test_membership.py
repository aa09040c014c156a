"""Membership: who is connected, how long the server waits for hospitals, and when it gives up."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from wardround import datasets
from wardround.federation.clients import TooFewReplies
from wardround.flower.messages import TRAIN, Note, from_records, to_records
from wardround.flower.server.membership import Membership, QuorumMissed

ALL = [f"hospital-{number:02d}" for number in range(5)]


@pytest.fixture
def join(town):
    """Make the membership of a federation of five hospitals, nodes 2 to 6; deadline 30 s, quorum 3."""

    def make(**federation):
        made = town(federation=federation)
        clock, assignment = made.clock, SimpleNamespace(clients=tuple(ALL))
        return made, Membership(made.config, made.grid, made.folder, None, assignment, clock.now, clock.sleep)

    return make


def hellos(federation):
    return [
        message.metadata.dst_node_id
        for message in federation.grid.seen
        if message.metadata.message_type == "query" and not message.metadata.reply_to_message_id
    ]


def test_new_nodes_are_asked_once_for_their_name(join):
    federation, membership = join()
    federation.grid.offline = {4}
    assert membership.refresh() == {"hospital-00": 2, "hospital-01": 3, "hospital-03": 5, "hospital-04": 6}
    federation.grid.offline = set()
    assert membership.refresh() == dict(zip(ALL, range(2, 7), strict=True))
    membership.refresh()
    assert sorted(hellos(federation)) == [2, 3, 4, 5, 6]
    assert [event["client"] for event in federation.audit()] == [*ALL[:2], *ALL[3:], ALL[2]]


def test_hospitals_come_in_the_order_of_the_partition(join):
    _, membership = join()
    membership.order = tuple(reversed(ALL))
    assert list(membership.refresh()) == ALL[::-1]
    membership.order = None
    assert list(membership.refresh()) == ALL, "sorted by name without one"


def test_a_node_that_does_not_say_its_name_is_asked_again_when_its_order_has_expired(join, monkeypatch):
    federation, membership = join()
    silent, deliver = [], federation.grid.deliver

    def silent_node(message):
        if message.metadata.dst_node_id == 4:
            silent.append(message)
            return []
        return deliver(message)

    monkeypatch.setattr(federation.grid, "deliver", silent_node)
    for _ in range(3):
        assert ALL[2] not in membership.refresh()
    assert len(silent) == 1
    federation.clock.sleep(61)
    for _ in range(3):
        membership.refresh()
    assert len(silent) == 2


def test_a_hospital_that_disconnects_is_not_present(join):
    federation, membership = join()
    membership.refresh()
    federation.grid.offline = {2, 3}
    assert list(membership.refresh()) == ALL[2:]


def test_who_goes_and_who_comes_back_is_in_the_audit_log_once(join):
    federation, membership = join()
    membership.refresh()
    federation.grid.offline = {2}
    for _ in range(3):
        membership.refresh()
    federation.grid.offline = set()
    for _ in range(3):
        membership.refresh()
    events = [(event["event"], event["client"]) for event in federation.audit()]
    assert events[5:] == [("disconnected", ALL[0]), ("connected", ALL[0])]


def test_who_comes_back_is_asked_what_it_runs_now(join, monkeypatch):
    from wardround.flower.hospital import introduction

    federation, membership = join()
    membership.refresh()
    federation.grid.offline = {2}
    membership.refresh()
    federation.grid.offline = set()
    monkeypatch.setattr(introduction, "versions", lambda: {"wardround": "9.9.9"})
    for _ in range(2):
        membership.refresh()
    said = [event for event in federation.audit() if event["event"] == "version-differs"]
    assert [(event["client"], "wardround 9.9.9" in event["reason"]) for event in said] == [(ALL[0], True)]


def test_after_a_restart_of_the_server_everybody_is_asked(join, monkeypatch):
    from wardround.flower.hospital import introduction

    federation, membership = join()
    membership.refresh()
    _, again = join()
    again.roster.load_state_dict(membership.roster.state_dict())
    monkeypatch.setattr(introduction, "versions", lambda: {"wardround": "9.9.9"})
    again.wait_for_start(resumed=True)
    again.refresh()
    said = [event["client"] for event in federation.audit() if event["event"] == "version-differs"]
    assert sorted(said) == sorted(ALL)


def test_wait_for_returns_when_enough_have_come(join):
    federation, membership = join()
    federation.grid.offline = {3, 4, 5, 6}
    sleep = federation.clock.sleep

    def arrive_one_by_one(seconds):
        federation.grid.offline = set(sorted(federation.grid.offline)[1:])
        sleep(seconds)

    membership.sleep = arrive_one_by_one
    assert list(membership.wait_for(3)) == ALL[:3]
    assert federation.clock.naps == [1, 1], "poll_seconds, once for each that was missing"
    assert list(membership.wait_for(2)) == ALL[:3], "no wait if enough are there"
    assert len(federation.clock.naps) == 2


def test_wait_for_gives_up_at_the_deadline(join):
    federation, membership = join()
    federation.grid.offline = {2, 3, 4}
    assert list(membership.wait_for(3)) == ALL[3:]
    assert federation.clock.now() == pytest.approx(30)


def test_wait_for_does_not_wait_for_refused_hospitals(join):
    federation, membership = join()
    membership.roster.known = ALL[:4]
    assert list(membership.wait_for(5)) == ALL[:4]
    assert federation.clock.naps == [], "all five have come, one is refused"


def test_a_retry_is_logged_and_waits_longer_each_time(join):
    federation, membership = join(retries=2, backoff_seconds=100)
    membership.wait_for_retry(7, 1, "2 usable updates, 3 are needed")
    membership.wait_for_retry(7, 2, "nobody came")
    assert federation.clock.naps == [100, 200]
    events = [(e["event"], e["round"], e["reason"], e["retry_in_seconds"]) for e in federation.audit()]
    assert events == [
        ("quorum-missed", 7, "2 usable updates, 3 are needed", 100),
        ("quorum-missed", 7, "nobody came", 200),
    ]


def test_without_a_retry_left_it_raises(join):
    federation, membership = join(retries=2)
    with pytest.raises(QuorumMissed) as error:
        membership.wait_for_retry(7, 3, "nobody came")
    assert str(error.value) == (
        "round 7: nobody came; gave up after 2 retries. Bring hospitals back and start again: the run resumes from here"
    )
    assert federation.clock.naps == []
    (event,) = federation.audit()
    assert (event["event"], event["retry_in_seconds"]) == ("quorum-missed", None)


def test_an_attempt_is_repeated_until_it_has_its_quorum(join):
    federation, membership = join(retries=2, backoff_seconds=100)
    reasons = ["first", "second"]

    def attempt():
        if reasons:
            raise TooFewReplies(reasons.pop(0))
        return "result"

    assert membership.retry_until_quorum(attempt, 7) == "result"
    assert federation.clock.naps == [100, 200]
    assert [event["reason"] for event in federation.audit()] == ["first", "second"]


def test_an_attempt_is_not_repeated_after_another_error(join):
    _, membership = join()
    attempts = []

    def attempt():
        attempts.append(1)
        raise KeyError("defect")

    with pytest.raises(KeyError):
        membership.retry_until_quorum(attempt, 7)
    assert len(attempts) == 1


@pytest.mark.parametrize(("resumed", "seconds"), [(False, 30), (True, 0)])
def test_a_new_run_waits_for_all_and_a_resumed_one_for_its_quorum(join, resumed, seconds):
    federation, membership = join()
    federation.grid.offline = {2, 3}
    membership.wait_for_start(resumed)
    assert federation.clock.now() == pytest.approx(seconds)
    assert not [event for event in federation.audit() if event["event"] == "quorum-missed"]


def test_a_run_does_not_start_without_its_quorum(join):
    federation, membership = join(retries=1)
    federation.grid.offline = {2, 3, 4}
    with pytest.raises(QuorumMissed, match=r"^round 1: 2 of 5 hospitals have joined, 3 are needed; gave up"):
        membership.wait_for_start(resumed=False)


def test_hospitals_agree_on_their_data_when_the_server_has_none(join):
    _, membership = join()
    assert membership.roster.shape is None
    membership.wait_for_start(resumed=False)
    assert membership.roster.shape["input_shape"] == [6]


def test_the_servers_dataset_decides_what_data_look_like(join):
    federation, _ = join()
    dataset = datasets.create("synthetic", samples=100, features=7).load(0)
    clock = federation.clock
    membership = Membership(
        federation.config, federation.grid, federation.folder, dataset, None, clock.now, clock.sleep
    )
    assert membership.roster.shape["input_shape"] == [7]
    assert membership.refresh() == {}
    assert set(membership.roster.refused.values()) == {
        "its data have other input shape than the federation's"
    }


def test_unusable_replies_are_logged_under_the_hospitals_name(join):
    federation, membership = join()
    present = membership.refresh()
    federation.grid.faults[3] = lambda order, replies: [*replies, *replies]
    order = Note({"kind": TRAIN})
    membership.broker.send(order, {"hospital-01": present["hospital-01"]}, 7, 30)
    membership.broker.collect(TRAIN, 30, lambda client, reply: None)
    event = federation.audit()[-1]
    assert (event["event"], event["client"], event["round"]) == ("repeated", "hospital-01", 7)
    membership._log_unusable("late", next(iter(membership.roster.names)), 0, "too late")
    assert federation.audit()[-1]["client"] in ALL, "an identity is translated into its name"


def test_a_refused_hospital_learns_why_and_may_come_back(join):
    """It is told at once, asked again after a while, and admitted as soon as it has fixed what was wrong."""
    federation, membership = join(recheck_seconds=15)
    deliver, samples, asked = federation.grid.deliver, [0], []

    def without_samples(message):
        replies = deliver(message)
        if message.metadata.dst_node_id == 3:
            asked.append((federation.clock.now(), from_records(message.content).head.get("refused")))
            said = from_records(replies[0].content)
            replies[0].content = to_records(Note({**said.head, "samples": samples[0]}))
        return replies

    federation.grid.deliver = without_samples
    for _ in range(5):
        assert "hospital-01" not in membership.refresh()
    reason = "it says it has 0 samples"
    assert asked == [(0.0, None), (0.0, reason)]
    federation.clock.sleep(16)
    membership.refresh()
    samples[0] = 80
    assert len(asked) == 3
    federation.clock.sleep(16)
    membership.refresh()
    assert "hospital-01" in membership.refresh()
    events = [event["event"] for event in federation.audit() if event.get("client") == "hospital-01"]
    assert events == ["refused", "joined"]
