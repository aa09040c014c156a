"""The finished model goes home: to every hospital that took part, checked there, stored in its own folder."""

import json

import pytest
import torch
from flwr.app import Error, Message
from sklearn.metrics import roc_auc_score
from tests.flower.test_tables import NAMES, Tables

from wardround.datasets.csv_files import read_table
from wardround.flower.hospital.memory import read_log
from wardround.flower.messages import from_records
from wardround.flower.server.delivery import Deliveries, is_delivery_pending
from wardround.flower.server.run import run_federation
from wardround.runs.export.exported import ExportedModel
from wardround.runs.export.writer import export_run


class Region(Tables):
    """Hospitals with tables, some of which may be away for a while."""

    def __init__(self, folder, **values):
        super().__init__(folder, **values)
        self.away = lambda node, time: False
        self.messages = []

    def grid(self):
        grid = super().grid()
        nodes, deliver = grid.get_node_ids, grid.deliver

        def present():
            return [node for node in nodes() if not self.away(node, self.clock.now())]

        def note(message):
            self.messages.append(message)
            return deliver(message)

        grid.get_node_ids, grid.deliver = present, note
        return grid

    def models(self, name):
        return sorted((self.folder / f"state-{name}" / "models").glob("*"))


@pytest.mark.slow
def test_every_hospital_has_the_model_and_can_use_it(tmp_path):
    region = Region(tmp_path, rounds=1)  # so that the best round is the one whose figures hospitals report
    folder = region.federate()
    deliveries = Deliveries.read(folder)
    assert deliveries == Deliveries(False, list(NAMES), {})
    exported = ExportedModel.load(folder.path / "model")
    reported = folder.rounds()[-1].per_client
    for number, name in enumerate(NAMES):
        (place,) = region.models(name)
        assert place.name == f"{folder.path.name}-round-{exported.manifest.round}"
        model = ExportedModel.load(place)
        assert torch.equal(model.weights, exported.weights)
        assert model.inputs == exported.inputs
        shares = model.predict_table(read_table(region.files[name], []), "raw").probabilities
        assert len(shares) == 60
        truth, predicted = hospital_rows(region, number)
        assert roc_auc_score(truth, predicted(model)) == pytest.approx(reported[name]["auroc"], abs=1e-3)


def hospital_rows(region, number):
    """The hospital's own test rows: truth, and what a model says of them."""
    from wardround.datasets.preprocessing import Preprocessing
    from wardround.flower.config import load_hospital
    from wardround.flower.hospital.data import HospitalData

    config = load_hospital(region.folder / f"{NAMES[number]}.yaml")
    own = HospitalData(config.dataset, config.seed)
    values = ExportedModel.load(region.models(NAMES[number])[0]).inputs.preprocessing
    split = own.prepare(Preprocessing.from_dict(values)).dataset.test
    return split.targets.numpy() > 0, lambda model: model.predict(split.inputs)[:, 0]


def test_the_delivered_model_is_what_export_writes(tmp_path):
    region = Region(tmp_path)
    folder = region.federate()
    export_run(folder, tmp_path / "again", onnx=False)
    own = ExportedModel.load(region.models("graz")[0])
    again = ExportedModel.load(tmp_path / "again")
    assert torch.equal(own.weights, again.weights)
    assert own.manifest.thresholds == again.manifest.thresholds


@pytest.mark.slow
def test_the_hospitals_own_log_knows_it(tmp_path, monkeypatch, capsys):
    import sys

    from wardround.cli.main import main

    region = Region(tmp_path)
    folder = region.federate()
    line = read_log(tmp_path / "state-linz")[-1]
    assert line["kind"] == "deliver"
    assert line["folder"] == str(region.models("linz")[0])
    assert line["shown"] is True, "its orders had shown this model"
    assert line["signed_by"] is None
    monkeypatch.setattr(sys, "argv", ["wardround", "hospital", "log", str(tmp_path / "linz.yaml")])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out.splitlines()[-1]
    assert "finished model, not signed, or not checked, as its orders showed it; stored in" in printed
    assert folder.path.name in printed


def test_a_hospital_that_comes_back_while_the_server_serves_gets_it(tmp_path):
    region = Region(tmp_path)
    rounds = []
    region.away = lambda node, time: node == 3 and len(rounds) >= 2 and time < back_at[0]
    back_at = [float("inf")]

    def listen(record):
        rounds.append(record.round)
        if record.round == 3:
            back_at[0] = region.clock.now() + 20

    folder = region.federate(listen)
    assert len(region.models("graz")) == 1
    assert Deliveries.read(folder).missing == {}
    absent = {record.client for record in folder.clients() if record.round == 3}
    assert "graz" not in absent, "it took part in the first rounds only"


def test_a_delivery_whose_acknowledgement_is_lost_is_made_again(tmp_path):
    region = Region(tmp_path)
    make, lost = region.grid, []

    def grid():
        made = make()
        deliver = made.deliver

        def lose_one(message):
            replies = deliver(message)
            is_model = b"model.safetensors" in str(message.content).encode()
            if is_model and message.metadata.dst_node_id == 3 and not lost:
                lost.append(replies)
                return [Message(Error(3, "Message Unavailable"), reply_to=message)]
            return replies

        made.deliver = lose_one
        return made

    region.grid = grid
    folder = region.federate()
    assert lost
    assert Deliveries.read(folder) == Deliveries(False, list(NAMES), {})
    assert len(region.models("graz")) == 1, "the second one found the first in its place"


@pytest.mark.slow
def test_a_hospital_that_stays_away_gets_it_when_the_server_serves_again(tmp_path):
    region = Region(tmp_path)
    rounds = []
    region.away = lambda node, time: node == 3 and len(rounds) >= 2
    folder = region.federate(lambda record: rounds.append(record.round), delivery_seconds=15)
    assert region.models("graz") == []
    assert Deliveries.read(folder).missing == {"graz": "it is not connected"}
    assert is_delivery_pending(folder)
    before = folder.rounds_path.read_bytes()
    region.away = lambda node, time: False
    region.messages.clear()
    again = region.federate()
    assert again.rounds_path.read_bytes() == before, "nothing was trained again"
    assert again.summary().finished
    again.verify()
    assert len(region.models("graz")) == 1
    assert not is_delivery_pending(again)
    sent = [message for message in region.messages if b"model.safetensors" in str(message.content).encode()]
    assert {message.metadata.dst_node_id for message in sent} <= {3}
    region.messages.clear()
    region.federate()
    assert region.messages == [], "now there is nothing left to do"


@pytest.mark.slow
def test_a_policy_that_takes_no_models_is_obeyed(tmp_path):
    region = Region(tmp_path)
    region.policies["ulm"] = {"keep_models": False}
    folder = region.federate()
    assert region.models("ulm") == []
    assert Deliveries.read(folder).missing == {"ulm": "it failed: refused by the hospital's policy"}
    assert (
        read_log(tmp_path / "state-ulm")[-1]["refused"] == "policy.keep_models: finished models are not taken"
    )
    events = [json.loads(line) for line in (folder.path / "audit.jsonl").read_text().splitlines()]
    last = {event["event"]: event.get("client") for event in events[-5:]}
    assert last["not-delivered"] == "ulm"


@pytest.mark.slow
def test_nothing_is_delivered_where_nobody_wants_it(tmp_path):
    region = Region(tmp_path)
    folder = region.federate(deliver=False)
    assert not (folder.path / "model").exists()
    assert Deliveries.read(folder) is None
    assert region.models("ulm") == []


@pytest.mark.slow
def test_signatures_are_made_with_the_servers_key_and_checked_by_the_hospitals_authority(tmp_path):
    from wardround.flower.certificates import KeyFiles, make_server_certificate

    keys, others = KeyFiles(tmp_path / "certs"), KeyFiles(tmp_path / "others")
    for files in (keys, others):
        make_server_certificate(files.folder, ["fed.example.org"])
    region = Region(tmp_path)
    grid = region.grid()
    for name in NAMES:
        own = others if name == "ulm" else keys
        text = (tmp_path / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(f"{text}root_certificates: {own.authority}\n")
    config = region.federation(certificate=str(keys.server), certificate_key=str(keys.server_key))
    folder = run_federation(config, grid, tmp_path / "fed", None, region.clock.now, region.clock.sleep)
    assert Deliveries.read(folder).missing.keys() == {"ulm"}
    assert "is not issued by" in read_log(tmp_path / "state-ulm")[-1]["refused"]
    assert "fed.example.org" in read_log(tmp_path / "state-linz")[-1]["signed_by"]


@pytest.mark.slow
def test_more_rounds_on_a_federation(tmp_path):
    """Rounds 4 and 5 on a federation of three: the same model as five from the start."""
    from wardround.runs.extension import extend

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    region, whole = Region(tmp_path / "one"), Region(tmp_path / "two")
    former = region.federate()
    region.values["rounds"] = whole.values["rounds"] = 5
    config = region.federation()
    assert extend(
        former, config.find_folder(tmp_path / "one" / "fed"), config.run, config.plain(), private=True
    )
    continued, other = region.federate(), whole.federate()
    assert continued.path != former.path
    assert [record.metrics for record in continued.rounds()] == [record.metrics for record in other.rounds()]
    states = [folder.read_checkpoint()["federation"]["weights"] for folder in (continued, other)]
    assert torch.equal(*states)
    assert len(region.models("brno")) == 2, "the model of three rounds and that of five"


@pytest.mark.slow
def test_a_federation_begins_from_an_exported_model(tmp_path):
    region = Region(tmp_path)
    first = region.federate()
    model = ExportedModel.load(first.path / "model")
    region.schema, region.values["initial_model"] = None, str(first.path / "model")
    region.values["rounds"] = 1
    starts = []
    folder = region.federate()
    for message in region.messages:
        if message.metadata.message_type == "train":
            starts.append(torch.from_numpy(from_records(message.content).arrays["weights"].copy()))
    assert torch.equal(starts[-1], model.weights)
    second = ExportedModel.load(folder.path / "model")
    assert second.inputs.preprocessing == model.inputs.preprocessing, "scales are the exported model's"
