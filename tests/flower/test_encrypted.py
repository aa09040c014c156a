"""Encrypted modes over messages: the server holds ciphertexts and what the steward opens, and nothing else."""

import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from wardround.errors import WardroundError
from wardround.flower.config import hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.messages import Note
from wardround.flower.orders import work_section
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS
from wardround.privacy.encryption.steward_service import StewardService
from wardround.privacy.encryption.vault import Vault, key_path, server_key
from wardround.runs.config import load_config
from wardround.runs.runner import run

CLIENTS = [f"hospital-{i:02d}" for i in range(5)]
RULES = {PADDED_SUMS: "fedmed", DEPOSITS: "caac"}


@pytest.fixture(scope="module", params=[PADDED_SUMS, DEPOSITS])
def steward(request, tmp_path_factory):
    """A steward behind a socket, and the privacy section of a run that uses it."""
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault = Vault(tmp_path_factory.mktemp("steward") / "vault")
    vault.make(CLIENTS, request.param)
    with StewardService(vault.steward(), server_key(vault.keys)) as service:
        thread = threading.Thread(target=service.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield {"mode": request.param, "steward": service.address, "steward_keys": str(vault.keys)}
        service.shutdown()
        thread.join()


def small(town, steward, **values):
    return town(privacy=steward, aggregator={"name": RULES[steward["mode"]]}, rounds=2, **values)


def test_the_result_is_that_of_a_run_in_the_clear(town, tmp_path, steward):
    federation = small(town, steward)
    folder = federation.run()
    clear = {**federation.config.run.plain(), "privacy": {"mode": "plaintext"}}
    plain = run(load_config(clear), tmp_path / "clear")
    for here, there in zip(folder.rounds(), plain.rounds(), strict=True):
        assert here.metrics == pytest.approx(there.metrics, abs=1e-4)
    weights = [[line.weight for line in lines.clients()] for lines in (folder, plain)]
    assert weights[0] == pytest.approx(weights[1], abs=1e-3)
    opened = [event for event in federation.audit() if event["event"] == "opened"]
    assert {event["what"] for event in opened} == {"sum"} | (
        {"scalars"} if steward["mode"] == DEPOSITS else set()
    )
    assert sorted(opened[0]["clients"]) == CLIENTS


def test_no_update_leaves_a_hospital_in_the_clear(town, steward):
    federation = small(town, steward)
    federation.run()
    replies = [
        m
        for m in federation.grid.seen
        if m.metadata.reply_to_message_id and m.metadata.message_type == "train"
    ]
    assert len(replies) == 2 * 5
    expected = {"ciphertext"} | ({"tag"} if steward["mode"] == DEPOSITS else set())
    for reply in replies:
        assert set(reply.content) == {"arrays", "metrics"}
        assert set(reply.content["arrays"]) == expected
        assert set(reply.content["metrics"]) == {"num-examples", "loss"}


def spoiled(name):
    def fault(order, replies):
        content = replies[0].content["arrays"]
        arrays = {key: Array(array.numpy().copy()) for key, array in content.items()}
        if name in arrays:
            arrays[name] = Array(np.zeros(len(content[name].numpy()), np.uint8))
        replies[0].content["arrays"] = ArrayRecord(arrays)
        return replies

    return fault


@pytest.mark.parametrize("name", ["ciphertext", "tag"])
def test_a_spoiled_answer_costs_its_row(town, steward, name):
    if name == "tag" and steward["mode"] == PADDED_SUMS:
        pytest.skip("padded sums have no tags")
    federation = small(town, steward)
    federation.grid.faults[3] = spoiled(name)
    folder = federation.run()
    assert folder.summary().status == "finished"
    for line in folder.clients():
        assert (line.status != "ok") == (line.client == "hospital-01")
    assert all(line.skipped is None for line in folder.rounds())


def test_a_round_tried_again_has_a_session_of_its_own(town, steward):
    federation = small(town, steward, federation={"quorum": 5, "retries": 2})
    tries = []

    def once_silent(order, replies):
        tries.append(order)
        return [] if len(tries) == 1 else replies

    federation.grid.faults[3] = once_silent
    assert federation.run().summary().status == "finished"
    assert len([event for event in federation.audit() if event["event"] == "steward-session"]) == 1


def test_a_hospital_decides_by_its_own_key(steward, tmp_path):
    dataset = {"name": "synthetic", "samples": 100, "features": 6}
    values = {"name": "hospital-01", "dataset": dataset}
    locked = Hospital.from_config(
        hospital_from({**values, "steward_key": str(key_path(steward["steward_keys"], "hospital-01"))})
    )
    config = load_config({"dataset": dataset, "model": {"name": "mlp", "hidden": [4]}})
    weights = np.zeros(33, np.float32)
    head = {"kind": "train", **work_section(config), "round": 1, "clients": 5,
            "policy": {"prox_mu": None, "local_batch_norm": False}}  # fmt: skip
    with pytest.raises(WardroundError, match=f"its steward_key is for {steward['mode']}"):
        locked.reply(Note(head, {}, {"weights": weights}))
    sealed = Note({**head, "mode": steward["mode"], "session": "s"}, {}, {"weights": weights})
    assert "update" not in locked.reply(sealed).arrays
    with pytest.raises(WardroundError, match="a pad is used once"):
        locked.reply(sealed)
    restarted = Hospital.from_config(
        hospital_from({**values, "steward_key": str(key_path(steward["steward_keys"], "hospital-01"))})
    )
    restarted.recall(locked.memory())
    with pytest.raises(WardroundError, match="a pad is used once"):
        restarted.reply(sealed)
    with pytest.raises(WardroundError, match="it has no steward_key"):
        Hospital.from_config(hospital_from(values)).reply(sealed)
