"""Hospitals with data of their own, a server without any: what a real federation is."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from wardround.errors import WardroundError
from wardround.flower.client_app import app
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.inline_grid import InlineGrid
from wardround.flower.messages import HELLO, TRAIN, Note, from_records, pack, to_records, unpack
from wardround.flower.orders import AUDIT, work_section
from wardround.flower.server.run import run_federation
from wardround.runs.audit import verify

DATA = {"name": "synthetic", "samples": 200, "features": 6}


def hospital(name="north", **values):
    return Hospital.from_config(hospital_from({"name": name, "dataset": DATA, **values}))


def order(config, weights, round=1, **head):
    policy = {"prox_mu": None, "local_batch_norm": False}
    asked = {"kind": TRAIN, **work_section(config.run), "round": round, "clients": 4, "policy": policy}
    return Note({**asked, AUDIT: [round, "0" * 64], **head}, {}, {"weights": weights})


def neighbours(hospitals):
    """A grid whose nodes are hospitals with own data, in place of the client app."""
    client_app = ClientApp()

    @client_app.train()
    @client_app.evaluate()
    @client_app.query()
    def answer(message, context):
        reply = hospitals[context.node_id - 2].reply(from_records(message.content))
        return Message(to_records(reply), reply_to=message)

    return InlineGrid(client_app, len(hospitals))


FED = """
name: own
model: {name: mlp, hidden: [4]}
rounds: 2
federation: {clients: 4, quorum: 3, poll_seconds: 0, deadline_seconds: 60}
"""


def town_of(**odd):
    names = ("north", "east", "south", "west")
    return [hospital(name, seed=seed, **odd.get(name, {})) for seed, name in enumerate(names)]


@pytest.mark.slow
def test_a_server_without_data_asks_the_hospitals_how_good_the_model_is(tmp_path):
    folder = run_federation(federation_from(FED), neighbours(town_of()), tmp_path)
    for line in folder.rounds():
        assert set(line.per_client) == {"north", "east", "south", "west"}
        for name in ("auroc", "accuracy", "loss"):
            middle = np.median([own[name] for own in line.per_client.values()])
            assert line.metrics[name] == pytest.approx(middle)
        assert line.validation["auroc"] > 0
    summary = folder.summary()
    assert summary.auroc == folder.rounds()[-1].metrics["auroc"]
    config = folder.config()
    assert config["dataset"] == {"name": "hospitals"}
    assert set(config["record"]["clients"]) == {"north", "east", "south", "west"}


@pytest.mark.slow
def test_analysis_and_report_read_a_federation(tmp_path):
    from wardround.analysis.runs import load_runs
    from wardround.report.page import write_page

    run_federation(federation_from(FED), neighbours(town_of()), tmp_path / "runs")
    assert len(load_runs([tmp_path / "runs"])) == 1
    write_page(load_runs([tmp_path / "runs"]), tmp_path / "report.html", "own")
    assert (tmp_path / "report.html").stat().st_size > 1000


@pytest.mark.slow
def test_a_hospital_whose_data_look_different_is_refused_and_the_others_go_on(tmp_path):
    odd = {"dataset": {**DATA, "features": 7}}
    folder = run_federation(federation_from(FED), neighbours(town_of(east=odd)), tmp_path)
    assert folder.summary().status == "finished"
    assert {line.client for line in folder.clients()} == {"north", "south", "west"}
    audit = [json.loads(line) for line in (folder.path / "audit.jsonl").read_text().splitlines()]
    refused = [event for event in audit if event["event"] == "refused"]
    assert {event["client"] for event in refused} == {"east"}
    assert len({event["reason"] for event in refused}) == len(refused), "logged once for each reason"
    verify(folder.path / "audit.jsonl")


@pytest.mark.slow
def test_a_name_belongs_to_the_node_that_said_it_first(tmp_path):
    hospitals = [*town_of()[:3], hospital("north", seed=9)]
    folder = run_federation(federation_from(FED), neighbours(hospitals), tmp_path)
    audit = [json.loads(line) for line in (folder.path / "audit.jsonl").read_text().splitlines()]
    (refused,) = [event for event in audit if event["event"] == "refused"]
    assert (refused["client"], refused["node"]) == ("north", "node:5")
    assert "another node's" in refused["reason"]
    assert all(len(line.per_client) == 3 for line in folder.rounds())


def imaging_hospital(part):
    """A few images, large enough for a network with BatchNorm."""
    parts = {"name": "iid", "clients": 3}
    one = hospital(f"h{part}", dataset={"name": "digits"}, partition=parts, part=part)

    def doubled(split):
        return replace(split, inputs=split.inputs.repeat_interleave(2, 2).repeat_interleave(2, 3))

    client = one.client
    data = client.dataset
    client.dataset = replace(
        data, train=doubled(data.train), validation=doubled(data.validation), test=doubled(data.test)
    )
    few = {"rows": client.data.rows[:24], "targets": client.data.targets[:24]}
    client.data = replace(client.data, inputs=client.dataset.train.inputs, **few)
    return Hospital(client, one.engine, one.device, one.memory)


@pytest.mark.slow
def test_batch_norm_stays_in_the_hospital(tmp_path):
    hospitals = [imaging_hospital(part) for part in range(3)]
    config = federation_from(
        "model: {name: medical-cnn}\nrounds: 2\naggregator: {name: fedbn}\n"
        "federation: {clients: 3, poll_seconds: 0, deadline_seconds: 60}\n"
    )
    sent = []
    grid = neighbours(hospitals)
    deliver = grid.deliver
    grid.deliver = lambda message: [sent.append(reply) or reply for reply in deliver(message)]
    folder = run_federation(config, grid, tmp_path)
    mask = hospitals[0].setups.last.work.layout.batch_norm_mask.numpy()
    updates = [from_records(m.content).arrays["update"] for m in sent if m.metadata.message_type == "train"]
    assert len(updates) == 6
    assert mask.any()
    assert not any(update[mask].any() for update in updates)
    own = [h.client.batch_norm for h in hospitals]
    assert not np.array_equal(own[0], own[1])
    assert set(folder.rounds()[-1].per_client) == {"h0", "h1", "h2"}


@pytest.mark.slow
def test_a_drill_attacks_without_the_server_knowing(tmp_path):
    drill = {"attack": {"name": "sign-flip", "scale": 10}}
    folder = run_federation(federation_from(FED), neighbours(town_of(west=drill)), tmp_path)
    assert not any(line.byzantine for line in folder.clients())
    audit = [json.loads(line) for line in (folder.path / "audit.jsonl").read_text().splitlines()]
    sent = next(event for event in audit if event["event"] == "received")["clients"]
    assert sent["west"]["norm"] > 3 * sent["north"]["norm"]


def test_noise_that_protects_from_the_server_is_not_of_its_seed():
    config = federation_from(FED + "privacy: {dp: {epsilon: 2.0, clip: 1.0}}\n")
    weights = np.zeros(33, np.float32)
    rows = [hospital().reply(order(config, weights)).arrays["update"] for _ in range(2)]
    assert not np.allclose(rows[0], rows[1])
    clear = [hospital().reply(order(federation_from(FED), weights)).arrays["update"] for _ in range(2)]
    np.testing.assert_array_equal(*clear)


def test_bytes_in_bytes_out():
    reply = unpack(hospital().answer(pack(Note({"kind": HELLO})))).head
    assert reply["name"] == "north"
    assert reply["input_shape"] == [6]


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (Note({"kind": "dance"}), "known: hello, train, evaluate"),
        (Note({}), "kind None"),
        (order(federation_from(FED), np.zeros(3, np.float32)), "do not fit"),
        (
            Note(order(federation_from(FED), np.zeros(33, np.float32)).head),
            "refused by the hospital's policy",
        ),
    ],
)
def test_an_order_that_cannot_be_done_is_one_line(note, said):
    with pytest.raises(WardroundError, match=said):
        hospital().reply(note)


def reply_to(config, note):
    context = Context(1, 2, config, RecordDict(), {})
    message = Message(to_records(note), 2, "train")
    InlineGrid(app, 1)  # sets Flower's task identity
    message.metadata.__dict__["_message_id"] = "order"
    return app(message, context)


def test_the_client_app_works_for_the_hospital_its_node_names(tmp_path):
    path = tmp_path / "hospital.yaml"
    path.write_text(f"name: north\ndataset: {json.dumps(DATA)}\n")
    InlineGrid(app, 1)
    reply = reply_to({"hospital": str(path)}, Note({"kind": HELLO}))
    assert from_records(reply.content).head["name"] == "north"


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({}, "neither hospital"),
        ({"hospital": "/nowhere.yaml"}, "no such file"),
        ({"partition-id": 0}, "config-text"),
    ],
)
def test_what_a_client_app_cannot_do_is_an_error_reply_of_one_line(node, said):
    InlineGrid(app, 1)
    reply = reply_to(node, Note({"kind": HELLO}))
    assert reply.has_error()
    assert said in reply.error.reason
    assert "\n" not in reply.error.reason


def test_a_defect_does_not_tell_the_server_what_it_was_about(monkeypatch, tmp_path):
    path = tmp_path / "hospital.yaml"
    path.write_text(f"name: north\ndataset: {json.dumps(DATA)}\n")
    monkeypatch.setattr(Hospital, "reply", lambda self, order: 1 / int("0 of patient Smith"))
    InlineGrid(app, 1)
    reply = reply_to({"hospital": str(path)}, Note({"kind": HELLO}))
    assert "Smith" not in reply.error.reason
    assert "ValueError" in reply.error.reason


@pytest.mark.slow
def test_the_client_app_imports_nothing_heavy():
    import subprocess
    import sys

    code = "import sys, wardround.flower.client_app; print(*{m.split('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "sklearn", "scipy", "monai"} & set(out.stdout.split())


def own_table(folder, name, number, policy=None):
    """A hospital with a table of 400 patients, nine of ten of them women."""
    rng = np.random.default_rng(number)
    scores = rng.standard_normal(400)
    died = (scores + rng.standard_normal(400) > 0).astype(int)
    sexes = np.where(np.arange(400) % 10 == 0, "male", "female")
    lines = [
        f"{s:.3f},{i % 7},{sex},{d}" for i, (s, sex, d) in enumerate(zip(scores, sexes, died, strict=True))
    ]
    path = folder / f"{name}.csv"
    path.write_text("score,other,sex,died\n" + "\n".join(lines) + "\n")
    data = {"name": "csv", "file": str(path), "label": "died", "drop": ["sex"], "groups": ["sex"]}
    return hospital(name, dataset=data, seed=number, policy=policy or {})


@pytest.mark.slow
def test_hospitals_report_groups_that_are_large_enough_and_the_record_has_them(tmp_path):
    bold = {"min_group": 1}
    hospitals = [
        own_table(tmp_path, name, i, bold if name != "west" else None)
        for i, name in enumerate(("north", "east", "south", "west"))
    ]
    folder = run_federation(federation_from(FED), neighbours(hospitals), tmp_path / "runs")
    last = folder.rounds()[-1]
    sexes = last.details.groups["sex"]
    assert sexes["male"]["hospitals"] == 3, "west has too few men among its test patients to speak of them"
    assert sexes["female"]["hospitals"] == 3, "nor of the women, from whom the men's figures would follow"
    assert 0.5 < sexes["female"]["auroc"] <= 1
    assert last.details.gaps["sex"]["accuracy"] is not None
    assert last.details.calibration
    assert 0 < last.metrics["threshold"] < 1
    assert last.metrics["brier"] < 0.3
    assert folder.summary().evaluation["final"]["groups"]["sex"]["male"]["hospitals"] == 3


class TestScaffold:
    """A hospital keeps its control variate, as it keeps its BatchNorm."""

    CONFIG = federation_from(
        FED + "training: {method: scaffold, optimizer: sgd, lr: 0.05, steps: 3, batch_size: 8}\n"
    )

    def asked(self, control, round=1, run="one"):
        note = order(self.CONFIG, np.zeros(33, np.float32), round, run=run)
        return Note(note.head, {}, {**note.arrays, "control": np.full(33, control, np.float32)})

    def test_it_is_the_mean_gradient_of_the_round_and_survives_a_restart(self):
        one = hospital()
        update = one.reply(self.asked(0.5)).arrays["update"]
        expected = -0.5 - update / (3 * 0.05)
        np.testing.assert_allclose(one.client.control, expected, rtol=1e-5, atol=1e-6)
        other = hospital()
        other.load_state(one.save_state())
        np.testing.assert_array_equal(other.client.control, one.client.control)
        rows = [each.reply(self.asked(0.1, round=2)).arrays["update"] for each in (one, other)]
        np.testing.assert_array_equal(*rows)
        fresh = hospital().reply(self.asked(0.1, round=2)).arrays["update"]
        assert not np.allclose(fresh, rows[0])

    def test_another_run_begins_without(self):
        one = hospital()
        one.reply(self.asked(0.5))
        other_run = one.reply(self.asked(0.1, round=2, run="two")).arrays["update"]
        fresh = hospital().reply(self.asked(0.1, round=2, run="two")).arrays["update"]
        np.testing.assert_array_equal(other_run, fresh)

    def test_a_variate_of_another_length_costs_no_round(self):
        one, note = hospital(), self.asked(0.0)
        short = Note(note.head, {}, {**note.arrays, "control": np.zeros(5, np.float32)})
        with pytest.raises(WardroundError, match="control do not fit"):
            one.reply(short)
        one.reply(note)
