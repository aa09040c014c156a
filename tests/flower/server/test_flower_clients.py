"""What goes wrong at one hospital costs that hospital's row, not the run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fast_cases import slow_but
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict

from wardround.flower.messages import from_records, to_records
from wardround.flower.server.doorbell import Bell
from wardround.flower.server.flower_clients import largest_reply
from wardround.flower.server.membership import QuorumMissed
from wardround.privacy.encryption.ciphers import new_secret, public_side
from wardround.runs.audit import verify
from wardround.runs.quarantine import quarantine, release


def lines_of(folder, client, key="reason"):
    return [line[key] for line in folder.clients() if line.client == client]


def altered(change):
    """A fault that changes the content of honest replies."""

    def fault(order, replies):
        for reply in replies:
            change(reply.content)
        return replies

    return fault


def put(name, value):
    return lambda content: content.__setitem__(name, value)


def update_of(array):
    return put("arrays", ArrayRecord({"update": Array(np.asarray(array))}))


def drop(name):
    return lambda content: content.__delitem__(name)


FAULTS = {
    "nan": (altered(update_of(np.full(33, np.nan, np.float32))), "not finite"),
    "infinite": (altered(update_of(np.full(33, np.inf, np.float32))), "not finite"),
    "wrong shape": (altered(update_of(np.ones((3, 11), np.float32))), "shape (3, 11) instead of (33,)"),
    "other kind": (altered(update_of(np.ones(33, np.int64))), "int64"),
    "other key": (altered(put("arrays", ArrayRecord([np.ones(33, np.float32)]))), "no update"),
    "no arrays": (altered(drop("arrays")), "no update"),
    "no metrics": (altered(drop("metrics")), "no sample count"),
    "no samples": (altered(put("metrics", MetricRecord({"loss": 0.1}))), "no sample count"),
    "zero samples": (altered(put("metrics", MetricRecord({"num-examples": 0}))), "sample count 0"),
    "negative samples": (altered(put("metrics", MetricRecord({"num-examples": -5}))), "sample count -5"),
    "huge samples": (altered(put("metrics", MetricRecord({"num-examples": 10**12}))), "more than 1000 times"),
    "endless samples": (
        altered(put("metrics", MetricRecord({"num-examples": 1e300}))),
        "sample count 1e+300",
    ),
    "broken array": (
        altered(put("arrays", ArrayRecord({"update": Array("float32", (33,), "numpy.ndarray", b"junk")}))),
        "cannot be read",
    ),
    "error": (lambda order, _: [Message(Error(2, "out of memory"), reply_to=order)], "failed: out of memory"),
    "gone": (lambda order, _: [Message(Error(5, "offline"), reply_to=order)], "went offline"),
    "silence": (lambda order, _: [], "no answer within 30 s"),
    "emptiness": (lambda order, _: [Message(RecordDict(), reply_to=order)], "no update"),
}
EVERY_DAY = (
    "nan",
    "wrong shape",
    "no arrays",
    "no samples",
    "negative samples",
    "broken array",
    "error",
    "silence",
)
"""One fault for each reason; the others are close to one of these."""


@pytest.mark.parametrize("fault", slow_but(EVERY_DAY, FAULTS))
def test_a_fault_costs_its_row_and_is_told(town, fault):
    federation = town(aggregator={"name": "caac"})
    break_it, reason = FAULTS[fault]
    federation.grid.faults[3] = break_it
    folder = federation.run()
    assert folder.summary().status == "finished"
    assert all(reason in told for told in lines_of(folder, "hospital-01"))
    assert len(lines_of(folder, "hospital-01")) == 3
    assert not any(lines_of(folder, "hospital-01", "weight"))
    for client in ("hospital-00", "hospital-02", "hospital-03", "hospital-04"):
        assert lines_of(folder, client) == [None] * 3
    for line in folder.rounds():
        assert np.isfinite(line.metrics["loss"])
        assert reason in line.left_out["hospital-01"].reason
    dropped = [event for event in federation.audit() if event["event"] == "dropped"]
    assert [(event["client"], event["round"]) for event in dropped] == [("hospital-01", n) for n in (1, 2, 3)]
    verify(folder.path / "audit.jsonl")


def test_a_late_answer_is_told_and_not_used(town):
    federation = town()
    kept = []

    def slow(order, replies):
        federation.grid.later += kept
        kept[:] = replies
        return []

    federation.grid.faults[3] = slow
    folder = federation.run()
    assert lines_of(folder, "hospital-01") == ["no answer within 30 s"] * 3
    assert lines_of(folder, "hospital-01", "status") == ["absent"] * 3
    late = [event for event in federation.audit() if event["event"] == "late"]
    assert [(event["client"], event["round"]) for event in late] == [("hospital-01", 1), ("hospital-01", 2)]


def test_a_repeated_answer_counts_once(town):
    honest, federation = town().run(), town(name="again")
    federation.grid.faults[3] = lambda order, replies: [*replies, *replies]
    folder = federation.run()
    assert folder.rounds()[-1].metrics == honest.rounds()[-1].metrics
    assert {event["client"] for event in federation.audit() if event["event"] == "repeated"} == {
        "hospital-01"
    }


def test_an_answer_to_nobodys_order_is_ignored(town):
    federation = town()

    def strange(order, replies):
        stranger = Message(replies[0].content, reply_to=order)
        stranger.metadata.__dict__["_reply_to_message_id"] = "unheard-of"
        return [stranger, *replies]

    federation.grid.faults[3] = strange
    assert lines_of(federation.run(), "hospital-01") == [None] * 3


def test_a_missed_quorum_is_tried_again_and_met(town):
    federation = town(federation={"quorum": 5, "retries": 3, "backoff_seconds": 100})
    tries = []

    def twice_silent(order, replies):
        tries.append(order)
        return [] if len(tries) <= 2 else replies

    federation.grid.faults[3] = twice_silent
    folder = federation.run()
    assert folder.summary().status == "finished"
    assert [nap for nap in federation.clock.naps if nap >= 100] == [100, 200]
    missed = [event for event in federation.audit() if event["event"] == "quorum-missed"]
    assert [event["retry_in_seconds"] for event in missed] == [100, 200]
    assert "hospital-01: no answer within 30 s" in missed[0]["reason"]


def test_a_quorum_missed_for_good_is_a_plain_message_and_the_run_can_go_on(town):
    federation = town(federation={"quorum": 5, "retries": 2})
    whole = town(name="whole").run()
    calls = []

    def later_silent(order, replies):
        calls.append(order)
        return replies if len(calls) <= 2 else []

    federation.grid.faults[3] = later_silent
    with pytest.raises(QuorumMissed) as error:
        federation.run()
    assert str(error.value).startswith("round 3: 4 usable updates, 5 are needed")
    assert "gave up after 2 retries" in str(error.value)
    assert "\n" not in str(error.value)
    summary = federation.folder.summary()
    assert (summary.status, summary.rounds) == ("stopped", 2)
    federation.grid.faults.clear()
    folder = federation.run()
    assert folder.summary().status == "finished"
    assert [line.round for line in folder.rounds()] == [1, 2, 3]
    assert folder.rounds()[-1].metrics == whole.rounds()[-1].metrics


def test_nobody_comes(town):
    federation = town(federation={"retries": 1})
    federation.grid.offline = set(federation.grid.contexts)
    with pytest.raises(QuorumMissed, match=r"0 of 5 hospitals have joined, 3 are needed"):
        federation.run()


@pytest.mark.parametrize("rule", slow_but(["caac"], ["caac", "dos", "centered-clipping"]))
def test_a_server_killed_between_or_in_rounds_goes_on_as_if_it_had_not_been(town, rule):
    whole = town(name="whole", rounds=4, aggregator={"name": rule}).run()
    federation = town(rounds=4, aggregator={"name": rule})

    class Killed(BaseException):
        pass

    def kill(result):
        if result.round == 2:
            raise Killed

    with pytest.raises(Killed):
        federation.run(kill)
    # A kill leaves no summary, and may leave lines of a round that the checkpoint does not know.
    federation.folder.summary_path.unlink()
    with open(federation.folder.rounds_path, "a") as file:
        file.write(json.dumps({"round": 3}) + "\n" + '{"round": 4, "sec')
    folder = federation.run()
    assert [line.round for line in folder.rounds()] == [1, 2, 3, 4]
    assert [line.metrics for line in folder.rounds()] == [line.metrics for line in whole.rounds()]
    events = [event["event"] for event in federation.audit()]
    assert events.count("run-started") == events.count("run-resumed") == 1
    assert federation.run().path == folder.path, "a finished run is left as it is"
    assert [event["event"] for event in federation.audit()] == events
    verify(folder.path / "audit.jsonl")


def test_a_hospital_that_reconnects_keeps_its_profile(town):
    federation = town(rounds=4, aggregator={"name": "caac", "t_boot": 1})

    def away_in_round_two(result):
        federation.grid.offline = {3} if result.round == 1 else set()

    folder = federation.run(away_in_round_two)
    assert [line.round for line in folder.clients() if line.client == "hospital-01"] == [1, 3, 4]
    profiles = torch.load(folder.checkpoint_path, weights_only=True)["federation"]["rule"]
    assert "hospital-01" in json.dumps(profiles, default=str)
    joined = [event["client"] for event in federation.audit() if event["event"] == "joined"]
    assert sorted(joined) == [f"hospital-{i:02d}" for i in range(5)], "nobody joins twice"


def test_a_hospital_that_comes_late_takes_part_from_then_on(town):
    federation = town(rounds=4)
    federation.grid.offline = {4}

    def arrive_after_the_second(result):
        federation.grid.offline = set() if result.round >= 2 else {4}

    folder = federation.run(arrive_after_the_second)
    assert [line.round for line in folder.clients() if line.client == "hospital-02"] == [3, 4]
    assert max(federation.clock.naps) <= 1, "nobody was waited for in rounds that had their quorum"


def test_quarantine_gives_weight_zero_until_release(town):
    federation = town(rounds=4)

    def operate(result):
        if result.round == 1:
            quarantine(federation.folder.path, "hospital-01", "scanner replaced")
        if result.round == 3:
            release(federation.folder.path, "hospital-01", "calibrated")

    folder = federation.run(operate)
    weights = lines_of(folder, "hospital-01", "weight")
    assert weights[1:3] == [0.0, 0.0]
    assert weights[0] > 0
    assert weights[3] > 0
    assert lines_of(folder, "hospital-01")[1] == "scanner replaced"
    assert lines_of(folder, "hospital-01", "status")[1] == "quarantined"
    orders = [
        m for m in federation.grid.seen if m.metadata.dst_node_id == 3 and m.metadata.message_type == "train"
    ]
    assert len(orders) == 2, "a quarantined hospital is not sent the model"
    applied = [event["round"] for event in federation.audit() if event["event"] == "quarantine-applied"]
    assert applied == [2, 3]


def test_the_audit_log_tells_what_was_sent_and_given(town):
    federation = town(rounds=1)
    folder = federation.run()
    events = {event["event"]: event for event in federation.audit()}
    assert list(events) == [
        "run-started", "joined", "received", "weights", "run-finished", "exported", "delivered",
    ]  # fmt: skip
    sent = events["received"]["clients"]["hospital-02"]
    line = next(line for line in folder.clients() if line.client == "hospital-02")
    assert len(sent["sha256"]) == 64
    assert sent["norm"] > 0
    assert sent["samples"] == line.num_samples
    assert events["weights"]["clients"]["hospital-02"] == pytest.approx(line.weight)


def test_only_update_count_and_metrics_leave_a_hospital(town):
    federation = town(aggregator={"name": "caac"})
    federation.run()
    replies = [m for m in federation.grid.seen if m.metadata.reply_to_message_id and m.has_content()]
    assert len(replies) == 5 + 3 * 5 + 5 + 5, (
        "introductions, three rounds, the last model's figures, its receipt"
    )
    for reply in replies:
        if reply.metadata.message_type == "train":
            assert set(reply.content) == {"arrays", "metrics"}
            assert set(reply.content["arrays"]) == {"update"}
            assert reply.content["arrays"]["update"].shape == (33,)
            assert set(reply.content["metrics"]) == {"num-examples", "loss"}
        elif reply.metadata.message_type == "evaluate":
            assert set(reply.content) == {"metrics"}
        else:
            assert set(reply.content) == {"config"}
            told = json.loads(reply.content["config"]["json"])
            known = {"name", "samples", "task", "class_names", "input_shape", "feature_names", "versions"}
            assert set(told) in (known, {"manifest"})


def test_a_hospital_without_samples_is_refused_and_the_others_go_on(town):
    federation = town()
    deliver = federation.grid.deliver

    def without_samples(message):
        replies = deliver(message)
        if message.metadata.dst_node_id == 3 and message.metadata.message_type == "query":
            for reply in replies:
                said = from_records(reply.content)
                reply.content = to_records(replace(said, head={**said.head, "samples": 0}))
        return replies

    federation.grid.deliver = without_samples
    folder = federation.run()
    assert folder.summary().status == "finished"
    assert {line.client for line in folder.clients()} == {f"hospital-{i:02d}" for i in (0, 2, 3, 4)}
    (refused,) = [event for event in federation.audit() if event["event"] == "refused"]
    assert (refused["client"], refused["reason"]) == ("hospital-01", "it says it has 0 samples")


class TestANewKey:
    """Hospital 1 comes back as another node (node 99) after the second round."""

    def run(self, town, stays=False, name="moved", **federation):
        town = town(
            name=name, rounds=5, federation={"identity": "node", **federation}, aggregator={"name": "caac"}
        )
        old = town.grid.contexts[3]

        def move(record):
            if record.round == 2:
                town.grid.contexts[99] = Context(1, 99, old.node_config, RecordDict(), old.run_config)
                town.grid.offline = set() if stays else {3}

        return town, town.run(move)

    def trained(self, town):
        """The rounds in which each of the two nodes was asked to train."""
        rounds = {3: [], 99: []}
        for message in town.grid.seen:
            metadata = message.metadata
            if metadata.message_type == "train" and not metadata.reply_to_message_id:
                head = json.loads(message.content["config"]["json"])
                if metadata.dst_node_id in rounds:
                    rounds[metadata.dst_node_id].append(head["round"])
        return rounds

    def events(self, town, kind):
        found = [event for event in town.audit() if event["event"] == kind]
        return [(event["node"], event.get("reason")) for event in found if event["client"] == "hospital-01"]

    def test_without_rebind_the_name_stays_with_the_old_one(self, town):
        moved, folder = self.run(town)
        assert self.trained(moved) == {3: [1, 2], 99: []}
        assert [line.round for line in folder.clients() if line.client == "hospital-01"] == [1, 2]
        ((node, reason),) = self.events(moved, "refused")
        assert node == "node:99"
        assert "federation.rebind" in reason

    def test_with_rebind_the_name_moves_and_keeps_its_profile(self, town):
        moved, folder = self.run(town, rebind=["hospital-01"])
        assert self.trained(moved) == {3: [1, 2], 99: [3, 4, 5]}
        assert lines_of(folder, "hospital-01", "status") == ["ok"] * 5
        whole, plain = self.run(town, name="whole", stays=True)
        assert self.trained(whole)[99] == []
        assert [line.metrics for line in folder.rounds()] == [line.metrics for line in plain.rounds()]

    def test_another_name_in_rebind_lets_nobody_else_move(self, town):
        moved, _ = self.run(town, rebind=["hospital-02"])
        assert self.trained(moved) == {3: [1, 2], 99: []}

    def test_the_old_key_does_not_take_the_name_back(self, town):
        moved, folder = self.run(town, stays=True, rebind=["hospital-01"])
        assert self.trained(moved) == {3: [1, 2], 99: [3, 4, 5]}
        assert [node for node, _ in self.events(moved, "joined")] == ["node:3", "node:99"]
        ((node, reason),) = self.events(moved, "refused")
        assert node == "node:3"
        assert "has moved to another node" in reason
        assert lines_of(folder, "hospital-01", "status") == ["ok"] * 5

    def test_nor_after_a_restart_of_the_server(self, town):
        town = town(rounds=4, federation={"identity": "node", "rebind": ["hospital-01"]})
        old = town.grid.contexts[3]

        class Killed(BaseException):
            pass

        def move(record):
            if record.round == 1:
                town.grid.contexts[99] = Context(1, 99, old.node_config, RecordDict(), old.run_config)
                town.grid.offline = {3}
            if record.round == 2:
                raise Killed

        with pytest.raises(Killed):
            town.run(move)
        town.grid.offline = {99}  # the new one is away just now, the old one is back
        town.run()
        assert self.trained(town) == {3: [1], 99: [2]}
        assert [node for node, _ in self.events(town, "joined")] == ["node:3", "node:99"]


def test_the_gateway_is_told_how_large_a_reply_may_be(town, monkeypatch):
    """An update of the model, by outcome too, passes; ten times as much does not."""
    told = []
    monkeypatch.setattr(Bell, "limit", lambda self, largest: told.append(largest))
    federation = town(model={"name": "mlp", "hidden": [400, 400]}, rounds=1)
    folder = federation.run()
    parameters = len(folder.read_checkpoint()["federation"]["weights"])
    assert parameters > 160_000
    (largest,) = told
    assert 8 * 3 * parameters < largest < 10 * 8 * parameters


@pytest.mark.parametrize("cipher", ["ckks", "paillier"])
def test_encrypted_updates_are_within_their_limit(cipher):
    pytest.importorskip("tenseal" if cipher == "ckks" else "numpy")
    secret = new_secret(cipher)
    public = public_side(cipher, secret.public_bytes())
    sealed = public.encrypt(np.linspace(-1, 1, 100), None)
    assert len(sealed) < largest_reply(100, 2, encrypted=True)
