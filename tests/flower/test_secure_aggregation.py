"""Secure aggregation over messages: the server has reports, masked updates and their sum, and nothing else."""

import json

import pytest

from wardround.flower.messages import from_records
from wardround.runs.config import load_config
from wardround.runs.runner import run

pytestmark = pytest.mark.slow

STAGES = ("share-keys", "mask", "confirm", "reveal")
MASKED = {"mode": "secure-aggregation"}


def small(town, rule="mean", clients=6, **values):
    """Six hospitals, of which four must be left."""
    partition = {"name": "iid", "clients": clients}
    sections = {"privacy": MASKED, "aggregator": {"name": rule}, "rounds": 2, "partition": partition}
    return town(**{**sections, **values})


def kind_of(message):
    return from_records(message.content).head.get("kind")


def silent(*stages, rounds=(1, 2)):
    """A fault: no answer at these stages."""

    def fault(order, replies):
        head = from_records(order.content).head
        return [] if head["kind"] in stages and head["round"] in rounds else replies

    return fault


def plain_run(federation, tmp_path, **changes):
    """The same run in the clear."""
    clear = {**federation.config.run.plain(), "privacy": {"mode": "plaintext"}, **changes}
    return run(load_config(clear), tmp_path / "clear")


@pytest.mark.parametrize("rule", ["mean", "fedavg", "fedprox", "fedmed"])
def test_the_result_is_that_of_a_run_in_the_clear(town, tmp_path, rule):
    federation = small(town, rule)
    folder = federation.run()
    plain = plain_run(federation, tmp_path)
    weights, expected = (f.read_checkpoint()["federation"]["weights"] for f in (folder, plain))
    assert float((weights - expected).norm() / expected.norm()) < 1e-6
    for here, there in zip(folder.rounds(), plain.rounds(), strict=True):
        assert here.skipped is None
        assert here.metrics == pytest.approx(there.metrics, abs=1e-6)
    for here, there in zip(folder.clients(), plain.clients(), strict=True):
        assert here.weight == pytest.approx(there.weight, abs=1e-8)
        assert "norm" not in here.columns


def test_no_update_leaves_a_hospital_unmasked(town):
    federation = small(town)
    federation.run()
    orders = {m.metadata.message_id: m for m in federation.grid.seen if not m.metadata.reply_to_message_id}
    sent = []
    for reply in federation.grid.seen:
        asked = orders.get(reply.metadata.reply_to_message_id)
        if asked is not None and reply.metadata.message_type == "train":
            sent.append(kind_of(asked))
            note = from_records(reply.content)
            assert set(note.arrays) == ({"masked"} if sent[-1] == "mask" else set())
            assert set(note.metrics) == ({"num-examples", "loss"} if sent[-1] == "train" else set())
    assert sorted(sent) == sorted(2 * 6 * ("train", *STAGES))


def test_the_audit_log_has_every_stage_and_who_dropped_out(town):
    federation = small(town)
    federation.grid.faults[3] = silent("mask", rounds=[1])
    federation.run()
    lines = [line for line in federation.audit() if line["event"] == "stage"]
    assert [(line["round"], line["stage"]) for line in lines] == [(r, s) for r in (1, 2) for s in STAGES]
    first = {line["stage"]: line for line in lines if line["round"] == 1}
    assert len(first["share-keys"]["answered"]) == 6
    assert first["mask"]["dropped"] == {"hospital-01": "no answer within 30 s"}
    assert "hospital-01" not in first["confirm"]["answered"]
    assert not any(line["dropped"] for line in lines if line["round"] == 2)
    dropped = [line for line in federation.audit() if line["event"] == "dropped"]
    assert [line["client"] for line in dropped] == ["hospital-01"]


@pytest.mark.parametrize("stage", ["train", *STAGES])
def test_hospitals_that_drop_out_do_not_cost_the_round(town, stage):
    federation = small(town, rounds=1)
    for node in (3, 5):
        federation.grid.faults[node] = silent(stage)
    folder = federation.run()
    (record,) = folder.rounds()
    assert record.skipped is None
    lost = {"hospital-01", "hospital-03"}
    shares = {client.client: client.weight for client in folder.clients()}
    if stage in ("confirm", "reveal"):  # their updates had arrived
        assert shares == pytest.approx(dict.fromkeys(shares, 1 / 6))
        assert not record.left_out
    else:
        assert set(record.left_out) == lost
        left = {client: share for client, share in shares.items() if client not in lost}
        assert left == pytest.approx(dict.fromkeys(left, 1 / 4))
        assert all(not shares[client] for client in lost)
    if stage in ("share-keys", "mask"):
        assert all(f"lost at stage '{stage}'" in why.reason for why in record.left_out.values())
        assert {why.status for why in record.left_out.values()} == {"dropped"}


def test_the_sum_of_those_who_are_left_is_theirs_alone(town, tmp_path):
    """Masked: hospital-05 is lost after it shared its keys. In the clear: it is quarantined."""
    federation = small(town, rounds=1)
    federation.grid.faults[7] = silent("mask")
    folder = federation.run()
    clear = small(town, rounds=1, privacy={"mode": "plaintext"}, name="clear")
    clear.grid.faults[7] = silent("train")
    expected = clear.run().read_checkpoint()["federation"]["weights"]
    weights = folder.read_checkpoint()["federation"]["weights"]
    assert float((weights - expected).norm() / expected.norm()) < 1e-6


def test_too_few_before_anybody_masked_is_tried_again(town):
    federation = small(town, rounds=1)
    tries = []

    def first_time_silent(order, replies):
        if kind_of(order) == "share-keys":
            tries.append(order)
            return [] if len(tries) <= 3 else replies
        return replies

    for node in (2, 3, 4):
        federation.grid.faults[node] = first_time_silent
    folder = federation.run()
    assert folder.rounds()[0].skipped is None
    (missed,) = [line for line in federation.audit() if line["event"] == "quorum-missed"]
    assert "3 of 6 hospitals have shared their keys, 4 are needed" in missed["reason"]
    keys = [
        {name: entry[0] for name, entry in from_records(m.content).head["cohort"].items()}
        for m in federation.grid.seen
        if m.metadata.message_type == "train" and m.has_content() and kind_of(m) == "share-keys"
    ]
    assert all(keys[0][name] != keys[-1][name] for name in keys[0])  # nobody used a key twice


@pytest.mark.parametrize("stage", STAGES[1:])
def test_too_few_later_skip_the_round(town, stage):
    federation = small(town)
    for node in (2, 3, 4):
        federation.grid.faults[node] = silent(stage, rounds=[1])
    folder = federation.run()
    first, second = folder.rounds()
    assert "3 of 6 hospitals" in first.skipped
    assert "4 are needed" in first.skipped
    assert second.skipped is None
    assert {client.weight for client in folder.clients() if client.round == 1} == {0.0}
    assert [line["event"] for line in federation.audit()].count("round-skipped") == 1


def test_a_weight_beyond_the_bound_skips_the_round(town):
    privacy = {**MASKED, "max_share": 0.1}
    folder = small(town, rounds=1, privacy=privacy).run()
    assert "one client has 0.167 of the sum, more than 0.1" in folder.rounds()[0].skipped


def test_a_server_that_is_killed_in_the_middle_skips_the_round_when_it_resumes(town):
    """Nobody masks its update of a round twice, so the round that was cut off has no sum any more."""
    federation = small(town)

    def killed(order, replies):
        raise KeyboardInterrupt

    federation.grid.faults[2] = lambda order, replies: (
        killed(order, replies) if kind_of(order) == "reveal" else replies
    )
    with pytest.raises(KeyboardInterrupt):
        federation.run()
    federation.grid.faults.clear()
    folder = federation.run()
    first, second = folder.rounds()
    assert first.skipped == "an earlier attempt at this round lost its sum"
    assert second.skipped is None
    assert folder.summary().status == "finished"


def spoiled(stage, change):
    """A fault: the answer at a stage is changed."""

    def fault(order, replies):
        if kind_of(order) == stage:
            note = from_records(replies[0].content)
            if note.arrays:
                replies[0].content["arrays"]["masked"] = type(replies[0].content["arrays"]["masked"])(
                    change(note.arrays["masked"].copy())
                )
            else:
                replies[0].content["config"]["json"] = json.dumps(change(dict(note.head)))
        return replies

    return fault


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("train", lambda head: {"keys": ["no", "key", ""]}),
        ("train", lambda head: {"keys": 5}),
        ("train", lambda head: {}),
        ("share-keys", lambda head: {**head, "tokens": {}}),
        ("share-keys", lambda head: {**head, "tokens": 5}),
        ("mask", lambda masked: masked[:-8]),
        ("mask", lambda masked: masked[:-1]),
        ("confirm", lambda head: {"tags": {"hospital-00": 3}}),
        ("reveal", lambda head: {"seeds": head["seeds"], "keys": head["seeds"]}),
        ("reveal", lambda head: {}),
    ],
)
def test_an_answer_that_cannot_be_used_costs_one_hospital(town, stage, change):
    federation = small(town, rounds=1)
    federation.grid.faults[3] = spoiled(stage, change)
    (record,) = federation.run().rounds()
    assert record.skipped is None
    assert set(record.left_out) == ({"hospital-01"} if stage in ("train", "share-keys", "mask") else set())


def test_shares_that_are_not_what_they_should_be_skip_the_round(town):
    """Everybody refuses shares that cannot be read: one hospital can cost a round, as it can in any sum."""
    federation = small(town)

    def garbage(head):
        return {**head, "tokens": dict.fromkeys(head["tokens"], "gAAAAA")}

    federation.grid.faults[3] = spoiled("share-keys", garbage)
    folder = federation.run()
    assert all("1 of 6 hospitals have sent a masked update" in record.skipped for record in folder.rounds())


def test_noise_of_clients_goes_under_the_masks(town, tmp_path):
    dp = {"unit": "client", "clip": 0.5, "noise_multiplier": 0.1}
    federation = small(town, privacy={**MASKED, "dp": dp})
    folder = federation.run()
    plain = plain_run(federation, tmp_path, privacy={"mode": "plaintext", "dp": dp})
    weights, expected = (f.read_checkpoint()["federation"]["weights"] for f in (folder, plain))
    assert float((weights - expected).norm() / expected.norm()) < 1e-6
    assert [record.privacy for record in folder.rounds()] == [record.privacy for record in plain.rounds()]
