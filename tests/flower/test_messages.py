"""Notes survive both ways of travelling, and nothing a stranger writes does harm."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from wardround.errors import WardroundError
from wardround.flower.messages import Note, from_records, pack, to_records, unpack
from wardround.privacy.encryption.wire import pack_message

NOTE = Note(
    {"kind": "train", "round": 3, "policy": {"prox_mu": None}},
    {"num-examples": 12, "loss": 0.25},
    {"update": np.arange(6, dtype=np.float32), "ciphertext": np.frombuffer(b"\x00\xff", np.uint8)},
)


@pytest.mark.parametrize("travel", [lambda n: unpack(pack(n)), lambda n: from_records(to_records(n))])
def test_a_note_arrives_as_it_was_sent(travel):
    arrived = travel(NOTE)
    assert (arrived.head, arrived.metrics) == (NOTE.head, NOTE.metrics)
    assert {name: (a.dtype, a.tolist()) for name, a in arrived.arrays.items()} == {
        name: (a.dtype, a.tolist()) for name, a in NOTE.arrays.items()
    }


def test_an_empty_note_is_a_note():
    assert unpack(pack(Note())).arrays == from_records(to_records(Note())).arrays == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 20, pack_message({}), pack_message({"config": {}, "metrics": {}, "arrays": [["a", "O", [1]]]}, [b"x"]),
     pack_message({"config": {}, "metrics": {}, "arrays": [["a", "float32", [3]]]}, [b"1234"]), pack(NOTE)[:-1]],
)  # fmt: skip
def test_bytes_that_are_no_note_are_one_line_of_error(content):
    with pytest.raises(WardroundError):
        unpack(content)


@pytest.mark.parametrize(
    "records",
    [
        RecordDict({"config": ConfigRecord({"json": "{"})}),
        RecordDict({"config": ConfigRecord({"json": "[1]"})}),
        RecordDict({"config": ConfigRecord({})}),
        RecordDict({"arrays": ArrayRecord({"update": Array("float32", (2,), "numpy.ndarray", b"nonsense")})}),
        RecordDict({"arrays": ArrayRecord({"update": Array("float32", (2,), "something", b"")})}),
        RecordDict({"arrays": ArrayRecord([np.array([1 + 2j])])}),
    ],
)
def test_records_that_are_no_note_are_one_line_of_error(records):
    with pytest.raises(WardroundError):
        from_records(records)


def test_numbers_that_are_lists_or_nan_are_left_out():
    records = RecordDict({"metrics": MetricRecord({"loss": float("nan"), "more": [1, 2], "num-examples": 3})})
    assert from_records(records).metrics == {"num-examples": 3}
