"""A hospital's memory on disk: it survives restarts, and a hospital that has lost it does not begin anew."""

import shutil

import numpy as np
import pytest
import torch

from wardround.errors import ConfigError, WardroundError
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.memory import LOG_FILE, read_log
from wardround.flower.hospital.state_file import STATE_FILE, StateFile
from wardround.flower.messages import EVALUATE, HELLO, TRAIN, Note
from wardround.flower.orders import AUDIT, work_section

FED = federation_from("model: {name: mlp, hidden: [4]}\nrounds: 9\nfederation: {clients: 4}")
DATA = {"name": "synthetic", "samples": 200, "features": 6}


def order(round, kind=TRAIN, seed=0, **head):
    policy = {"prox_mu": None, "local_batch_norm": False}
    asked = {
        "kind": kind,
        "run": "r",
        **work_section(FED.run),
        "round": round,
        "clients": 4,
        "policy": policy,
    }
    weights = np.full(33, 0.01 * seed, np.float32)
    return Note({**asked, AUDIT: [round, "0" * 64], **head}, {}, {"weights": weights})


def started(folder, **policy):
    config = hospital_from({"name": "north", "dataset": DATA, "policy": policy})
    hospital = Hospital.from_config(config, folder)
    state = StateFile(folder / STATE_FILE, hospital)
    state.load()
    return hospital


def test_nothing_leaves_before_it_is_on_disk(tmp_path, monkeypatch):
    hospital = started(tmp_path)
    steps = []
    save, write = hospital.keep, hospital.memory.write_log
    hospital.keep = lambda: steps.append("memory") or save()
    monkeypatch.setattr(hospital.memory, "write_log", lambda: steps.append("log") or write())
    hospital.reply(order(1))
    assert steps == ["memory", "memory", "log"]  # when the round begins, and when its reply is there
    monkeypatch.setattr(hospital, "keep", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hospital.reply(order(2))


@pytest.mark.parametrize("asked", [order(2, kind=HELLO), order(2), order(2, kind=EVALUATE), order(0)])
def test_every_order_counts_even_if_it_was_refused(tmp_path, asked):
    hospital = started(tmp_path, max_orders_per_day=2)
    for _ in range(2):
        try:
            hospital.reply(asked)
        except WardroundError:
            assert asked.head["round"] == 0
        hospital = started(tmp_path, max_orders_per_day=2)  # a server that can crash it gains nothing
    with pytest.raises(WardroundError, match="refused by the hospital's policy"):
        hospital.reply(asked)
    assert "max_orders_per_day" in read_log(tmp_path)[-1]["refused"]


def test_a_restarted_hospital_gives_the_same_answer_and_no_other(tmp_path):
    first = started(tmp_path).reply(order(1)).arrays["update"]
    np.testing.assert_array_equal(started(tmp_path).reply(order(1)).arrays["update"], first)
    with pytest.raises(WardroundError, match="refused"):
        started(tmp_path).reply(order(1, seed=1))


def test_its_modes(tmp_path, open_umask, mode_of):
    folder = tmp_path / "state"
    started(folder).reply(order(1))
    assert mode_of(folder) == 0o700
    for name in (STATE_FILE, LOG_FILE):
        assert mode_of(folder / name) == 0o600
    assert not list(folder.glob("*.tmp"))


def other_content():
    return [
        b"x",
        b"no memory at all",
        b"PK\x03\x04",
        b"\x80\x04N.",
        b"\0" * 1000,
        b"[" * 100_000,
    ]


@pytest.mark.parametrize("content", other_content())
def test_a_memory_that_cannot_be_read_stops_the_hospital(tmp_path, content):
    started(tmp_path).reply(order(1))
    (tmp_path / STATE_FILE).write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"memory: not a hospital's memory \(\w+\); to begin anew"
    ) as problem:
        started(tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("share", [0.2, 0.9, 0.999])
def test_half_a_memory_is_none(tmp_path, share):
    started(tmp_path).reply(order(1))
    path = tmp_path / STATE_FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match="not a hospital's memory"):
        started(tmp_path)


def test_a_memory_of_other_things_is_none(tmp_path):
    torch.save({"weights": torch.ones(3)}, tmp_path / STATE_FILE)
    with pytest.raises(ConfigError, match="not a hospital's memory"):
        started(tmp_path)


def test_nothing_in_a_memory_is_executed(tmp_path):
    import pickle

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / STATE_FILE).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ConfigError, match="not a hospital's memory"):
        started(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_memory_that_may_not_be_opened(tmp_path):
    (tmp_path / STATE_FILE).mkdir()
    with pytest.raises(ConfigError, match="the hospital's memory cannot be read"):
        started(tmp_path)


@pytest.mark.parametrize("content", [None, b""])
def test_a_lost_memory_is_noticed_by_the_log(tmp_path, content):
    started(tmp_path).reply(order(3))
    path = tmp_path / STATE_FILE
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"round 0 of a run of which outgoing\.jsonl has an answer in round 3"
    ):
        started(tmp_path)


def test_an_old_copy_of_the_memory_is_noticed_by_the_log(tmp_path):
    hospital, path = started(tmp_path), tmp_path / STATE_FILE
    hospital.reply(order(1))
    old = path.read_bytes()
    hospital.reply(order(2))
    path.write_bytes(old)
    with pytest.raises(ConfigError, match="an old copy was put back") as problem:
        started(tmp_path)
    assert "\n" not in str(problem.value)


def test_a_process_that_dies_between_memory_and_log_can_start_again(tmp_path, monkeypatch):
    hospital = started(tmp_path)
    monkeypatch.setattr(hospital.memory, "write_log", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hospital.reply(order(1))
    assert read_log(tmp_path) == []
    started(tmp_path).reply(order(1))
    assert read_log(tmp_path)[-1]["repeated"]


def test_a_folder_that_was_moved_away_is_a_new_beginning(tmp_path):
    started(tmp_path / "a").reply(order(3))
    started(tmp_path / "b").reply(order(1))


def test_processes_take_turns(tmp_path):
    """A client app without a trainer: a process for every message, each with what the last one left."""
    config = hospital_from({"name": "north", "dataset": DATA})
    states = [StateFile(tmp_path / STATE_FILE, Hospital.from_config(config, tmp_path)) for _ in range(2)]
    with states[0].in_turn() as one:
        first = one.reply(order(1)).arrays["update"]
    with states[1].in_turn() as other:
        np.testing.assert_array_equal(other.reply(order(1)).arrays["update"], first)
        other.reply(order(2, seed=1))
    with states[0].in_turn() as one, pytest.raises(WardroundError, match="refused"):
        one.reply(order(1))


def test_a_copy_of_the_state_folder_is_a_backup(tmp_path):
    """Restored on another machine the hospital gives the same answers, knows what it has answered, and goes on."""
    hospital = started(tmp_path / "old")
    given = [hospital.reply(order(round)).arrays["update"] for round in (1, 2)]
    shutil.copytree(tmp_path / "old", tmp_path / "backup")
    shutil.rmtree(tmp_path / "old")
    shutil.copytree(tmp_path / "backup", tmp_path / "new")
    restored = started(tmp_path / "new")
    np.testing.assert_array_equal(restored.reply(order(2)).arrays["update"], given[1])
    with pytest.raises(WardroundError, match="refused"):
        restored.reply(order(2, seed=1))
    assert restored.reply(order(3)).arrays["update"].shape == given[1].shape
    assert [line["round"] for line in read_log(tmp_path / "new") if line.get("round")] == [1, 2, 2, 2, 3]


def test_an_old_copy_over_a_newer_state_is_refused(tmp_path):
    hospital = started(tmp_path / "state")
    hospital.reply(order(1))
    shutil.copy(tmp_path / "state" / STATE_FILE, tmp_path / "yesterday")
    hospital.reply(order(2))
    shutil.copy(tmp_path / "yesterday", tmp_path / "state" / STATE_FILE)
    with pytest.raises(ConfigError, match=r"is at round 1 .* an answer in round 2: lost, or an old copy"):
        started(tmp_path / "state")


def test_a_memory_without_what_was_added_later_is_read(tmp_path):
    """As the versions before secure aggregation, control variates and split updates left it."""
    hospital = started(tmp_path)
    first = hospital.reply(order(1)).arrays["update"]
    state = torch.load(tmp_path / STATE_FILE, weights_only=True)
    for key in ("control", "masking", "attack_by_outcome"):
        del state[key]
    torch.save(state, tmp_path / STATE_FILE)
    again = started(tmp_path)
    np.testing.assert_array_equal(again.reply(order(1)).arrays["update"], first)
    again.reply(order(2))


def test_a_memory_of_version_0_1_says_what_to_do(tmp_path):
    torch.save({"batch_norm": {}, "attack": {}, "last_weights": None, "sealed": {}}, tmp_path / STATE_FILE)
    with pytest.raises(ConfigError, match=r"memory: of version 0.1, .* move its whole folder away"):
        started(tmp_path)


def test_a_hospital_that_has_released_its_network_answers_the_same(tmp_path):
    kept, released = started(tmp_path / "a"), started(tmp_path / "b")
    for round in (1, 2):
        expected = kept.reply(order(round)).arrays["update"]
        np.testing.assert_array_equal(released.reply(order(round)).arrays["update"], expected)
        released.setups.release()
        assert released.setups.last is None
