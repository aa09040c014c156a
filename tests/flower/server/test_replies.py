"""Updates that were to be split by outcome, as they come in from hospitals that may send anything."""

import numpy as np
import pytest
import torch

from wardround.flower.messages import PART_COUNTS, PARTS, SAMPLES, Note
from wardround.flower.server.replies import Replies

D = 6
ROWS = np.arange(2 * D, dtype=np.float32).reshape(2, D)
COUNTS = np.array([7.0, 3.0])


def reply(**arrays):
    sent = {"update": ROWS.sum(0), PARTS: ROWS, PART_COUNTS: COUNTS, **arrays}
    present = {name: value for name, value in sent.items() if value is not None}
    return Note({}, {SAMPLES: 10.0, "loss": 0.5}, present)


def received(*sent):
    names = [f"hospital-{i}" for i in range(len(sent))]
    replies = Replies(names, D, torch.float32, by_outcome=True)
    for name, one in zip(names, sent, strict=True):
        replies.take(name, one)
    replies.close([], 1.0, None)
    return replies


def test_parts_and_counts_reach_the_rule():
    replies = received(reply(), reply())
    parts = replies._parts_of(replies.clients)
    assert not replies.problems
    assert torch.equal(parts.rows[1], torch.from_numpy(ROWS))
    assert parts.counts.tolist() == [[7.0, 3.0]] * 2


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({PARTS: None}, "not split by outcome"),
        ({PART_COUNTS: None}, "not split by outcome"),
        ({PARTS: ROWS[:, :3]}, "parts of shape"),
        ({PARTS: ROWS[0]}, "parts of shape"),
        ({PART_COUNTS: COUNTS[:1]}, "counts of shape"),
        ({PARTS: ROWS.astype(int)}, "parts of kind"),
        ({PARTS: np.zeros((3, D), np.float32), PART_COUNTS: np.zeros(3)}, "3 outcomes instead of 2"),
    ],
)
def test_parts_that_are_none_are_named(arrays, problem):
    replies = received(reply(), reply(), reply(**arrays))
    assert problem in replies.problems["hospital-2"]
    assert list(replies.problems) == ["hospital-2"]
