"""When the state of a run goes to the disk."""

import pytest
import torch

from wardround.records import RoundRecord
from wardround.runs import checkpoints as module
from wardround.runs.checkpoints import Checkpoints
from wardround.runs.folder import RunFolder


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"name": "x", "record": {"schema": 3}})
    return folder


def play(folder, checkpoints, rounds):
    """Rounds that change the same tensor in place, as a rule may."""
    weights = torch.zeros(3)
    for number in rounds:
        weights += 1
        folder.append(RoundRecord(number), durable=False)
        checkpoints.after({"round": number, "federation": {"weights": weights}})


def test_without_an_interval_every_round_is_written(folder):
    checkpoints = Checkpoints(folder)
    for number in (1, 2, 3):
        play(folder, checkpoints, [number])
        assert folder.read_checkpoint()["round"] == number


def test_short_rounds_wait_for_the_interval(folder):
    clock = Clock()
    checkpoints = Checkpoints(folder, 1.0, clock)
    play(folder, checkpoints, [1, 2, 3])
    assert folder.read_checkpoint()["round"] == 1, "the first is written at once"
    clock.now = 1.0
    play(folder, checkpoints, [4])
    assert folder.read_checkpoint()["round"] == 4


def test_what_waits_is_written_when_the_run_is_stopped(folder):
    """With the state as it was after the round, whatever the next one has begun to change."""
    weights = torch.zeros(3)

    def rounds_until_ctrl_c(checkpoints):
        with checkpoints.written_on_exit():
            for number in (1, 2):
                weights.add_(1)
                folder.append(RoundRecord(number), durable=False)
                checkpoints.after({"round": number, "federation": {"weights": weights}})
            weights.add_(100)
            folder.append(RoundRecord(3), durable=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds_until_ctrl_c(Checkpoints(folder, 1.0, Clock()))
    state = RunFolder(folder.path).resume()
    assert state["round"] == 2
    assert state["federation"]["weights"].tolist() == [2, 2, 2]
    assert [record.round for record in folder.rounds()] == [1, 2], "the lines of round 3 are cut off"


def test_the_last_round_is_written(folder):
    checkpoints = Checkpoints(folder, 1.0, Clock())
    play(folder, checkpoints, [1, 2])
    checkpoints.after({"round": 3, "federation": {}}, last=True)
    assert folder.read_checkpoint()["round"] == 3


def test_a_large_state_is_not_kept_twice(folder, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_COPY", 8)
    checkpoints = Checkpoints(folder, 1.0, Clock())
    play(folder, checkpoints, [1, 2])
    assert folder.read_checkpoint()["round"] == 2
