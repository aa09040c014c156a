"""`wardround hospital log` and `ledger`: what a hospital's own operators see."""

import json

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr", reason="flwr is not installed (extra 'flower')")
pytest.importorskip("opacus", reason="opacus is not installed (extra 'privacy')")

from wardround.errors import WardroundError
from wardround.flower.config import federation_from, load_hospital
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.messages import TRAIN, Note
from wardround.flower.orders import AUDIT, work_section

FED = """
name: own
model: {name: mlp, hidden: [4]}
privacy: {dp: {clip: 1.0, noise_multiplier: 2.0}}
federation: {clients: 4}
"""
SIZE = 7 * 4 + 5  # parameters of the model on six features


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "hospital.yaml"
    values = {
        "name": "north",
        "dataset": {"name": "synthetic", "samples": 200, "features": 6},
        "policy": {"lr": [1e-4, 1.0], "dp": {"min_noise": 1.0, "budget": 50.0}},
    }
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def state(config):
    """The hospital's state folder after two answers, one of them given twice, and a refused order."""
    folder = config.parent / ".north"
    hospital = Hospital.from_config(load_hospital(config), folder)
    section = work_section(federation_from(FED).run)

    def order(round, **training):
        policy = {"prox_mu": None, "local_batch_norm": False}
        head = {"kind": TRAIN, "run": "own-1", **section, "round": round, "clients": 4, "policy": policy}
        head["training"] = {**section["training"], **training}
        return Note({**head, AUDIT: [round, "ab" * 32]}, {}, {"weights": np.zeros(SIZE, np.float32)})

    hospital.reply(order(1))
    hospital.reply(order(2))
    hospital.reply(order(2))
    with pytest.raises(WardroundError, match="refused by the hospital's policy"):
        hospital.reply(order(3, lr=1e-30))
    (folder / "memory").write_bytes(hospital.save_state())
    return folder


def test_the_log_lists_what_left_and_what_was_refused(here, config, state):
    lines = here("hospital", "log", config).stdout.splitlines()
    assert [" ".join(line.split()[2:5]) for line in lines] == [
        "train round 1",
        "train round 2",
        "train round 2",
        "train round 3",
    ]
    logged = json.loads(here("hospital", "log", config, "--json").stdout)
    for text, line in zip(lines[:3], logged, strict=False):
        assert f"{line['bytes']} bytes {line['sha256'][:16]}" in text
    assert [text.endswith("(the same again)") for text in lines] == [False, False, True, False]
    assert logged[1]["sha256"] == logged[2]["sha256"] != logged[0]["sha256"]
    assert "refused: " in lines[3]
    assert "1e-30" in lines[3]
    assert "bytes" not in logged[3]
    assert [line.get("audit") for line in logged[:3]] == [[1, "ab" * 32], [2, "ab" * 32], [2, "ab" * 32]]


def test_the_ledger_says_what_privacy_is_spent(here, config, state):
    ledger = json.loads(here("hospital", "ledger", config, "--json").stdout)
    assert 0 < ledger["epsilon"] < ledger["budget"] == 50.0
    assert ledger["rounds"] == {"run:own-1": 2}
    lines = here("hospital", "ledger", config).stdout.splitlines()
    assert lines[0] == f"ε = {ledger['epsilon']:.3f} of 50 (δ = {ledger['delta']:g}), over all runs"
    assert lines[1:] == ["answered up to round 2: run:own-1"]


def test_a_hospital_that_was_asked_nothing_yet(here, config):
    assert here("hospital", "log", config).stdout == "nothing has left this hospital\n"
    assert json.loads(here("hospital", "log", config, "--json").stdout) == []
    ledger = json.loads(here("hospital", "ledger", config, "--json").stdout)
    assert (ledger["epsilon"], ledger["rounds"]) == (0.0, {})
    assert here("hospital", "ledger", config).stdout.startswith("ε = 0.000 of 50")
    assert not (config.parent / ".north").exists(), "looking writes nothing"


@pytest.mark.parametrize("content", [b"", b"no memory", b"PK\x03\x04", b"\x80\x04N."])
def test_a_broken_memory_is_an_error_of_one_line(here, config, state, content):
    (state / "memory").write_bytes(content)
    result = here("hospital", "ledger", config)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "memory: not a hospital's memory" in line
    assert here("hospital", "log", config).returncode == 0, "the log is another file"


@pytest.mark.parametrize("line", ["nothing", "[]", "3", '{"kind": "train"}', "[" * 9999])
def test_a_broken_log_is_an_error_of_one_line(here, config, state, line):
    log = state / "outgoing.jsonl"
    log.write_text(f"{line}\n{log.read_text()}")
    result = here("hospital", "log", config)
    assert result.returncode == 2
    (said,) = result.stderr.splitlines()
    assert "outgoing.jsonl: line 1 is no line of a hospital's log" in said


def test_a_line_that_was_cut_off_is_left_out(here, config, state):
    with open(state / "outgoing.jsonl", "a") as file:
        file.write('{"time": 17')
    assert len(here("hospital", "log", config).stdout.splitlines()) == 4


@pytest.mark.parametrize("command", ["log", "ledger"])
def test_no_configuration_is_an_error_of_one_line(here, tmp_path, command):
    result = here("hospital", command, tmp_path / "missing.yaml")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
