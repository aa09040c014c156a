"""The memory of past rounds."""

import pytest
import torch

from wardround.aggregators.fedbnp.memory import Memory


def test_the_memory_forgets_the_oldest_but_not_the_mean_and_goes_round_the_world():
    memory = Memory(rounds=2, features=1)
    for value in (1.0, 2.0, 6.0):
        memory.store(["x"], torch.tensor([[value]]))
    again = Memory(rounds=2, features=1)
    again.load_state_dict(memory.state_dict())
    values, known = again.recall(["y", "x"])
    assert values[1, :, 0].tolist() == [6.0, 2.0, 3.0]
    assert known.tolist() == [[False, False, False], [True, True, True]]
    assert again.mean_with(["x", "y"], torch.tensor([[7.0], [5.0]])).flatten().tolist() == [4.0, 5.0]


def test_the_mean_forgets_slowly_after_twenty_rounds():
    memory = Memory(rounds=1, features=1)
    for _ in range(20):
        memory.store(["x"], torch.zeros(1, 1))
    for expected in (1.0, 1.95):  # each new round counts a twentieth
        memory.store(["x"], torch.full((1, 1), 20.0))
        assert memory.recall(["x"])[0][0, 1].item() == pytest.approx(expected)
