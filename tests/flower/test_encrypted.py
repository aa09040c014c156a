"""Encrypted modes over messages: the server holds ciphertexts and what the steward opens, and nothing else."""

import json
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from wardround.errors import WardroundError
from wardround.flower.config import hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.memory import read_log
from wardround.flower.messages import Note
from wardround.flower.orders import AUDIT, work_section
from wardround.privacy.encryption.ciphers import public_side
from wardround.privacy.encryption.refusals import KeysSpent, Refused, StewardAway
from wardround.privacy.encryption.remote_steward import RemoteSteward
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS
from wardround.privacy.encryption.steward_service import StewardService
from wardround.privacy.encryption.vault import PUBLIC, Vault, key_path, public_context, server_key
from wardround.runs.config import load_config
from wardround.runs.runner import run

CLIENTS = [f"hospital-{i:02d}" for i in range(5)]
RULES = {PADDED_SUMS: "fedmed", DEPOSITS: "caac"}


@pytest.fixture(scope="module", params=[PADDED_SUMS, pytest.param(DEPOSITS, marks=pytest.mark.slow)])
def made(request, tmp_path_factory):
    """A mode and a steward's folder for it, before its run: making keys takes longer than a test."""
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")
    vault = Vault(tmp_path_factory.mktemp("steward") / "vault")
    vault.make(CLIENTS, request.param)
    return request.param, vault.folder


@contextmanager
def served(vault, mode, port=0):
    with StewardService(vault.steward(), server_key(vault.keys), port=port) as service:
        thread = threading.Thread(target=service.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield {"mode": mode, "steward": service.address, "steward_keys": str(vault.keys)}
        service.shutdown()
        thread.join()


@pytest.fixture
def vault(made, tmp_path):
    """A steward is for one run: each test has its own."""
    return Vault(shutil.copytree(made[1], tmp_path / "steward"))


@pytest.fixture
def steward(made, vault):
    """A steward behind a socket, and the privacy section of a run that uses it."""
    with served(vault, made[0]) as section:
        yield section


def small(town, steward, **values):
    return town(privacy=steward, aggregator={"name": RULES[steward["mode"]]}, **{"rounds": 2, **values})


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_update_leaves_a_hospital_in_the_clear(town, steward):
    federation = small(town, steward)
    federation.run()
    replies = [
        m
        for m in federation.grid.seen
        if m.metadata.reply_to_message_id and m.metadata.message_type == "train"
    ]
    assert len(replies) == 2 * 5
    for reply in replies:
        assert set(reply.content) == {"arrays", "metrics"}
        assert set(reply.content["arrays"]) == {"ciphertext"}
        assert set(reply.content["metrics"]) == {"num-examples", "loss"}


@pytest.mark.slow
def test_the_server_cannot_read_a_deposit(town, steward):
    """Not even with the cipher's public keys: it never holds a ciphertext that the steward opens."""
    if steward["mode"] == PADDED_SUMS:
        pytest.skip("there the server sums ciphertexts, under pads")
    federation = small(town, steward)
    federation.run()
    replies = [m.content["arrays"] for m in federation.grid.seen if "arrays" in m.content]
    sealed = [arrays["ciphertext"].numpy().tobytes() for arrays in replies if "ciphertext" in arrays]
    assert len(sealed) == 10
    public = public_side(*public_context(Path(steward["steward_keys"]) / PUBLIC))
    for content in sealed:
        with pytest.raises(Refused, match="not a CKKS ciphertext"):
            public.combine([(content, 0.5)])
        assert b"WRC1" not in content


def all_zero(content):
    return np.zeros_like(content)


def one_bit(content):
    changed = content.copy()
    changed[-1] ^= 1
    return changed


def spoiled(change):
    def fault(order, replies):
        content = replies[0].content["arrays"]["ciphertext"].numpy()
        replies[0].content["arrays"] = ArrayRecord({"ciphertext": Array(change(content))})
        return replies

    return fault


@pytest.mark.slow
@pytest.mark.parametrize("change", [all_zero, one_bit])
def test_a_spoiled_answer_costs_its_row(town, steward, change):
    if change is one_bit and steward["mode"] == PADDED_SUMS:
        pytest.skip("a padded ciphertext has no seal: one bit more or less is another ciphertext")
    federation = small(town, steward)
    federation.grid.faults[3] = spoiled(change)
    folder = federation.run()
    assert folder.summary().status == "finished"
    for line in folder.clients():
        assert (line.status != "ok") == (line.client == "hospital-01")
    assert all(line.skipped is None for line in folder.rounds())


@pytest.mark.slow
def test_a_round_tried_again_is_the_same_order(town, steward, vault):
    federation = small(town, steward, federation={"quorum": 5, "retries": 2})
    tries = []

    def once_silent(order, replies):
        tries.append(order)
        return [] if len(tries) == 1 else replies

    federation.grid.faults[3] = once_silent
    folder = federation.run()
    assert folder.summary().status == "finished"
    assert folder.summary().skipped_rounds == 0
    assert len(tries) == 3
    lines = [json.loads(line) for line in vault.log_path.read_text().splitlines()]
    assert [line["round"] for line in lines if line["kind"] == "sum"] == [1, 2]
    assert not any("refused" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("away", [("/context", 2), ("/sum", 2), ("/measured-sum", 1), ("/measure", 1)])
def test_a_steward_that_is_away_costs_retries_and_not_the_run(town, steward, tmp_path, monkeypatch, away):
    """Each try takes the hospitals' same replies, and what failed has taught the rule nothing."""
    path, times = away
    federation = small(town, steward, rounds=3, federation={"retries": 3})
    ask, failed = RemoteSteward._ask, []

    def ask_or_fail(self, asked, head, blobs=()):
        if asked == path and len(failed) < times and head.get("round") in (None, 2):
            failed.append(asked)
            raise StewardAway("the steward at http://x cannot be reached (Connection refused)")
        return ask(self, asked, head, blobs)

    monkeypatch.setattr(RemoteSteward, "_ask", ask_or_fail)
    folder = federation.run()
    if not failed:
        pytest.skip(f"this mode does not ask for {path}")
    assert folder.summary().status == "finished"
    assert folder.summary().skipped_rounds == 0
    missed = [event["reason"] for event in federation.audit() if event["event"] == "quorum-missed"]
    assert len(missed) == times
    assert all("cannot be reached" in reason for reason in missed)
    clear = {**federation.config.run.plain(), "privacy": {"mode": "plaintext"}}
    plain = run(load_config(clear), tmp_path / "clear")
    weights = [[line.weight for line in lines.clients()] for lines in (folder, plain)]
    assert weights[0] == pytest.approx(weights[1], abs=1e-3), "as if nothing had happened"


@pytest.mark.slow
def test_a_server_that_was_killed_resumes_with_the_same_answers(town, made, vault):
    """It died after the steward had opened a round and before the round was on its disk; the steward died too."""
    with served(vault, made[0]) as section:
        federation = small(town, section, rounds=3)
        audit_log, kept = federation.folder.path / "audit.jsonl", {}

        def die(record):
            if record.round == 1:  # what the server has on disk
                kept.update({path: path.read_bytes() for path in federation.folder.path.iterdir()})
            if record.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            federation.run(die)
        log = audit_log.read_bytes()
        for path in federation.folder.path.iterdir():
            path.unlink()
        for path, content in kept.items():
            path.write_bytes(content)
        audit_log.write_bytes(log)  # the audit log is only ever appended to
        port = int(section["steward"].rsplit(":", 1)[1])
    with served(vault, made[0], port):
        folder = federation.run()
    assert folder.summary().status == "finished"
    assert folder.summary().skipped_rounds == 0
    lines = [json.loads(line) for line in vault.log_path.read_text().splitlines()]
    assert [line["round"] for line in lines if line["kind"] == "sum" and "repeated" not in line] == [1, 2, 3]
    assert [line["round"] for line in lines if line["kind"] == "sum" and "repeated" in line] == [2]
    assert not any("refused" in line for line in lines)


@pytest.mark.slow
def test_a_new_run_with_old_keys_is_refused_in_one_line(town, steward):
    small(town, steward).run()
    with pytest.raises(KeysSpent, match="A new run needs new keys of the steward") as refusal:
        small(town, steward, seed=1).run()
    assert "\n" not in str(refusal.value)


DATA = {"name": "synthetic", "samples": 100, "features": 6}


def hospital(steward, folder=None, locked=True, **values):
    key = {"steward_key": str(key_path(steward["steward_keys"], "hospital-01"))} if locked else {}
    config = hospital_from({"name": "hospital-01", "dataset": DATA, **key, **values})
    return Hospital.from_config(config, folder)


def order(steward, round=1, seed=0, **head):
    config = load_config({"dataset": DATA, "model": {"name": "mlp", "hidden": [4]}, "seed": seed})
    work = {"kind": "train", **work_section(config), "round": round, "clients": 5, AUDIT: [round, "0" * 64],
            "policy": {"prox_mu": None, "local_batch_norm": False}, "mode": steward["mode"]}  # fmt: skip
    return Note({**work, **head}, {}, {"weights": np.zeros(33, np.float32)})


def refusals(folder):
    return [line["refused"] for line in read_log(folder) if "refused" in line]


def test_a_hospital_decides_by_its_own_key(steward, tmp_path):
    clear = order(steward)
    clear = Note({key: value for key, value in clear.head.items() if key != "mode"}, {}, clear.arrays)
    locked = hospital(steward, tmp_path / "locked")
    with pytest.raises(WardroundError, match=r"^refused by the hospital's policy$"):
        locked.reply(clear)
    assert f"its steward_key is for {steward['mode']}" in refusals(tmp_path / "locked")[0]
    assert set(locked.reply(order(steward)).arrays) == {"ciphertext"}
    with pytest.raises(WardroundError, match=r"^refused by the hospital's policy$"):
        hospital(steward, tmp_path / "open", locked=False).reply(order(steward))
    assert "it has no steward_key" in refusals(tmp_path / "open")[0]


def test_a_hospital_seals_a_round_once_across_restarts(steward, tmp_path):
    locked = hospital(steward, tmp_path)
    first = locked.reply(order(steward)).arrays["ciphertext"]
    restarted = hospital(steward, tmp_path)
    restarted.load_state(locked.save_state())
    for one in (locked, restarted):
        np.testing.assert_array_equal(one.reply(order(steward)).arrays["ciphertext"], first)
        for again in (order(steward, seed=1), order(steward, clients=6), order(steward, run="another")):
            with pytest.raises(WardroundError, match=r"^refused by the hospital's policy$"):
                one.reply(again)
    assert "a round is answered for one order" in refusals(tmp_path)[-1]
    restarted.reply(order(steward, round=3))
    with pytest.raises(WardroundError, match="refused"):
        restarted.reply(order(steward, round=2))


def test_a_sealer_refuses_a_second_order_by_itself(steward):
    """Whoever has no memory around it: a key seals a round for one order."""
    sealer = Sealer.from_file(key_path(steward["steward_keys"], "hospital-01"), "hospital-01")
    sealer.seal(np.ones(5), 2, "one")
    sealer.seal(np.ones(5), 2, "one")
    for round, asked in ((2, "another"), (1, "one")):
        with pytest.raises(WardroundError, match="a round is sealed for one order"):
            sealer.seal(np.ones(5), round, asked)
    sealer.seal(np.ones(5), 3, "another")
