"""What a hospital does with a model that the server brings: every lie is found before anything is stored."""

import numpy as np
import pytest

from wardround.errors import WardroundError
from wardround.experiments import load_config, run
from wardround.flower.config import hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.memory import read_log
from wardround.flower.messages import DELIVER, Note
from wardround.flower.orders import AUDIT, order_hash
from wardround.privacy.order_names import start_of
from wardround.runs.export.exported import read_model_folder
from wardround.runs.export.manifest import MANIFEST, Manifest
from wardround.runs.export.writer import export_run

DATA = {"name": "synthetic", "samples": 200, "features": 6}
REFUSED = "refused by the hospital's policy"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run's model: its name, round and files."""
    folder = tmp_path_factory.mktemp("server")
    config = {
        "dataset": DATA, "partition": {"name": "iid", "clients": 3}, "rounds": 2,
        "model": {"name": "mlp", "hidden": [4]},
    }  # fmt: skip
    manifest = export_run(run(load_config(config), folder / "runs"), folder / "model", "last", onnx=False)
    return manifest, read_model_folder(folder / "model")


@pytest.fixture
def hospital(tmp_path):
    def join(**policy):
        config = hospital_from({"name": "graz", "dataset": DATA, "policy": policy})
        return Hospital.from_config(config, tmp_path / "state")

    return join


def order(manifest, files, **head):
    arrays = {name: np.frombuffer(content, dtype=np.uint8) for name, content in files.items()}
    values = {"kind": DELIVER, "run": manifest.run, "round": manifest.round, AUDIT: [3, "0" * 64], **head}
    return Note(values, {}, arrays)


def stored(tmp_path):
    return sorted(path.name for path in (tmp_path / "state" / "models").glob("*"))


def refusal(tmp_path):
    return read_log(tmp_path / "state")[-1]["refused"]


def test_a_good_model_is_stored_for_its_owner_only(hospital, exported, tmp_path, open_umask, mode_of):
    manifest, files = exported
    hospital().reply(order(manifest, files))
    assert stored(tmp_path) == [f"{manifest.run}-round-2"]
    place = tmp_path / "state" / "models" / f"{manifest.run}-round-2"
    assert read_model_folder(place) == files
    assert mode_of(place) == 0o700
    assert read_log(tmp_path / "state")[-1]["shown"] is False, "no order had shown this model"


def test_the_same_again_is_no_problem_and_another_of_the_same_round_is(hospital, exported, tmp_path):
    manifest, files = exported
    own = hospital()
    own.reply(order(manifest, files))
    own.reply(order(manifest, files))
    assert stored(tmp_path) == [f"{manifest.run}-round-2"]
    place = tmp_path / "state" / "models" / f"{manifest.run}-round-2" / MANIFEST
    place.write_bytes(place.read_bytes().replace(b'"last"', b'"best"'))
    with pytest.raises(WardroundError, match=REFUSED):
        own.reply(order(manifest, files))
    assert "a round has one model" in refusal(tmp_path)


def flipped(files, name):
    content = bytearray(files[name])
    content[-1] ^= 1
    return {**files, name: bytes(content)}


def renamed(manifest, files, **changes):
    from dataclasses import replace

    return {**files, MANIFEST: replace(manifest, **changes).to_bytes()}


LIES = {
    "changed weights": (lambda m, f: flipped(f, "model.safetensors"), {}, "is not the file that was exported"),
    "changed card": (lambda m, f: flipped(f, "MODEL_CARD.md"), {}, "is not the file that was exported"),
    "no manifest": (lambda m, f: {k: v for k, v in f.items() if k != MANIFEST}, {}, "not the manifest of a model"),
    "a stranger's file": (lambda m, f: {**f, "run.sh": b"#!"}, {}, "'run.sh' is no file of a model"),
    "a file elsewhere": (lambda m, f: {**f, "../../x": b"x"}, {}, "is no file of a model"),
    "another run": (lambda m, f: f, {"run": "other"}, "of another run than the order"),
    "another round": (lambda m, f: f, {"round": 1}, "of another round than the order"),
    "a name that leaves the folder": (lambda m, f: renamed(m, f, run="../../x"), {"run": "../../x"}, "of another run"),
    "other data": (lambda m, f: renamed(m, f, class_names=("a", "b"), thresholds={"b": 0.5}), {}, "other class names"),
    "another network": (lambda m, f: renamed(m, f, model={"name": "logistic"}), {}, "where the model has [1, 6]"),
    "weights of another name": (lambda m, f: renamed(m, f, weights="0" * 64), {}, "not those that the manifest names"),
    "no audit log": (lambda m, f: f, {AUDIT: None}, "where the server's audit log stands"),
    "no round": (lambda m, f: f, {"round": "two"}, "does not say of which round"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_what_is_not_right_is_refused_and_not_stored(hospital, exported, tmp_path, lie):
    manifest, files = exported
    change, head, reason = LIES[lie]
    with pytest.raises(WardroundError, match=REFUSED):
        hospital().reply(order(manifest, change(manifest, files), **head))
    assert reason in refusal(tmp_path)
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"keep_models": False}, "policy.keep_models"),
        ({"models": ("logistic",)}, "is not in policy.models"),
        ({"max_parameters": 32}, "33 parameters, more than policy.max_parameters 32"),
        ({"max_weight": 1e-6}, "policy.max_weight"),
    ],
)
def test_the_policy_holds_for_finished_models_too(hospital, exported, tmp_path, policy, reason):
    with pytest.raises(WardroundError, match=REFUSED):
        hospital(**policy).reply(order(*exported))
    assert reason in refusal(tmp_path)
    assert stored(tmp_path) == []


@pytest.mark.parametrize("kind", ["evaluated", "answered", "logged", "refused"])
@pytest.mark.parametrize("honest", [True, False])
def test_the_model_must_be_the_one_that_the_orders_showed(hospital, exported, tmp_path, kind, honest):
    manifest, files = exported
    own = hospital()
    shown = manifest.weights[:32] if honest else "f" * 32
    asked, run_name = f"{shown}.{'0' * 64}", f"run:{manifest.run}"
    if kind == "evaluated":
        own.memory.evaluated = {run_name: (2, asked)}
    elif kind == "answered":  # round 3 started from the model after round 2
        own.memory.answered = {run_name: (3, asked)}
    elif kind == "logged":
        own.memory.log("evaluate", b"reply", run=run_name, round=2, order=asked)
        own.memory.log("train", b"reply", run=run_name, round=4, order=f"{'a' * 32}.0")
        own.memory.write_log()
    else:
        own.memory.log("evaluate", None, refused="metrics stay here", run=run_name, round=2, order=asked)
        own.memory.write_log()
    if honest:
        own.reply(order(manifest, files))
        assert read_log(tmp_path / "state")[-1]["shown"] is True
    else:
        with pytest.raises(WardroundError, match=REFUSED):
            own.reply(order(manifest, files))
        assert "is not the one that the server's orders showed after round 2" in refusal(tmp_path)


def test_the_hash_of_the_weights_is_that_of_orders(exported):
    from wardround.runs.export.exported import parse_model

    manifest, files = exported
    weights = parse_model(files, "here").weights.numpy()
    asked = order_hash(Note({"kind": "train"}, {}, {"weights": weights}))
    assert manifest.weights.startswith(start_of(asked))


def test_an_unsigned_model_is_refused_where_the_hospital_can_check(exported, tmp_path):
    from wardround.flower.certificates import KeyFiles, make_server_certificate
    from wardround.runs.export.manifest import SIGNATURE
    from wardround.runs.export.signature import sign

    keys = KeyFiles(tmp_path / "certs")
    make_server_certificate(keys.folder, ["127.0.0.1"])
    manifest, files = exported
    config = hospital_from({"name": "graz", "dataset": DATA, "root_certificates": str(keys.authority)})
    own = Hospital.from_config(config, tmp_path / "state")
    with pytest.raises(WardroundError, match=REFUSED):
        own.reply(order(manifest, files))
    assert "the model has no signature" in refusal(tmp_path)
    signature = sign(files[MANIFEST], keys.server_key, keys.server)
    own.reply(order(manifest, {**files, SIGNATURE: signature}))
    assert stored(tmp_path) == [f"{manifest.run}-round-2"]


def test_manifests_of_the_wire_and_of_the_disk_are_the_same(exported):
    manifest, files = exported
    assert Manifest.from_bytes(files[MANIFEST]) == manifest
