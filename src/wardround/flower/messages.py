"""What travels between server and hospitals, as one plain thing: words, numbers, arrays.

A `Note` becomes the content of a Flower message (`to_records`, `from_records`), or one byte string for the trainer
that a hospital keeps running beside its SuperNode (`pack`, `unpack`). Numpy only, nothing is ever unpickled.

An order (server → hospital) has a head with `kind` and what the work is, and for training and judging the array
`weights`. An answer (hospital → server) to

* `hello` (with the schema of tables, where there is one) has a head: the hospital's name, its number of samples and
  the shape of its data, statistics of its columns where its policy allows them; or why its data do not fit; and the
  versions of its software;
* `train` has the array `update` (encrypted: `ciphertext`, and for deposits `tag`) and the numbers `num-examples`
  and `loss`. Nothing else;
* `evaluate` has numbers: the metrics on the hospital's own test samples. Its head may have `groups` (the figures of
  patient groups that are large enough), `calibration` (bins of the curve: edges, rows, predicted, observed) and
  `reasons` (metric → what kind of reason there is that it has no value);
* `deliver` (the finished model, one array of bytes per file) has a head: the hash of the manifest that it checked.

In a masked round the answer to `train` has no array; four more orders follow it. Their heads name the hash of the
training order, and an answer to

* `share-keys` (everybody's public keys and weights) has a head: encrypted shares for each of the others;
* `mask` (the shares that others encrypted for this hospital) has the array `masked`;
* `confirm` (who is left) has a head: a tag for each of the others that are left;
* `reveal` (the others' tags) has a head: one share per hospital.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wardround.errors import WardroundError
from wardround.privacy.encryption.wire import pack_message, unpack_message

if TYPE_CHECKING:
    from flwr.app import RecordDict

__all__ = [
    "BLOB", "CALIBRATION", "CONFIRM", "DELIVER", "EVALUATE", "GROUPS", "HEAD", "HEAD_JSON", "HELLO", "KEYS", "MASK",
    "MASKING", "MIN_COUNT_KEY", "PARTS", "PART_COUNTS", "REASONS", "REFUSED_KEY", "REVEAL", "SAMPLES", "SCHEMA_KEY",
    "SHARE_KEYS", "SPENT", "TABLE_KEY", "TRAIN", "UNFIT_KEY", "VALIDATION", "VERSIONS_KEY", "Note", "from_records",
    "pack", "to_records", "unpack",
]  # fmt: skip

HELLO, TRAIN, EVALUATE, DELIVER = "hello", "train", "evaluate", "deliver"
SHARE_KEYS, MASK, CONFIRM, REVEAL = "share-keys", "mask", "confirm", "reveal"
"""The stages of a masked round after training, see `secure_aggregation`."""
MASKING = (SHARE_KEYS, MASK, CONFIRM, REVEAL)
KEYS, SPENT = "keys", "spent"
"""In a reply to `train` of a masked round: the hospital's public keys; or that its update has been masked already,
for a sum that was lost."""
SCHEMA_KEY, MIN_COUNT_KEY = "schema", "min_count"
"""In a `hello`: what the hospitals' columns mean, and the fewest patients that statistics may speak of."""
REFUSED_KEY, VERSIONS_KEY = "refused", "versions"
"""In a `hello`: why the hospital was refused before, if it was; there and in its reply: what the sender runs."""
TABLE_KEY, UNFIT_KEY = "table", "unfit"
"""In a reply to `hello`: label and statistics of the hospital's table; or why its data do not fit the schema."""
PARTS, PART_COUNTS = "parts", "part-counts"
"""Arrays in a reply to `train` where updates are split by outcome: the parts, and how many patients they are of."""
SAMPLES = "num-examples"
"""Flower's own name for a client's number of samples."""
VALIDATION = "validation-"
"""Before the names of metrics on validation samples; those without it are on test samples."""
GROUPS, CALIBRATION, REASONS = "groups", "calibration", "reasons"
"""In the head of a reply to `evaluate`."""
HEAD, METRICS, ARRAYS = "config", "metrics", "arrays"
HEAD_JSON, BLOB = "json", "note"
"""Where a Flower message has a note: its head as JSON in the record `config`, or all of it as one byte string."""
KINDS = ("float32", "float64", "uint8")
"""The kinds of numbers that travel."""


@dataclass(frozen=True, eq=False)
class Note:
    """What one side tells the other."""

    head: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def pack(note: Note) -> bytes:
    """One byte string.

    >>> note = unpack(pack(Note({"kind": "train"}, {"loss": 0.5}, {"update": np.ones(2, np.float32)})))
    >>> note.head, note.metrics, note.arrays["update"].tolist()
    ({'kind': 'train'}, {'loss': 0.5}, [1.0, 1.0])
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in note.arrays.items()}
    content = {
        HEAD: dict(note.head),
        METRICS: dict(note.metrics),
        ARRAYS: [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()],
    }
    return pack_message(content, [array.tobytes() for array in arrays.values()])


def unpack(content: bytes) -> Note:
    """The note that `pack` made into this byte string."""
    message, blobs = unpack_message(content)
    try:
        arrays = {}
        for (name, kind, shape), blob in zip(message[ARRAYS], blobs, strict=True):
            if kind not in KINDS:
                raise ValueError(f"an array of {kind}")
            arrays[name] = np.frombuffer(blob, dtype=kind).reshape(shape)
        return Note(dict(message[HEAD]), dict(message[METRICS]), arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise WardroundError(f"not a note of this program ({error})") from None


def to_records(note: Note) -> RecordDict:
    """The content of a Flower message: one record, because Flower sends every record and every array by itself.

    A `hello` stays readable for all versions of wardround, so that each can say which one it is.
    """
    from flwr.app import ConfigRecord, RecordDict

    if note.head.get("kind") == HELLO and not note.metrics and not note.arrays:
        return RecordDict({HEAD: ConfigRecord({HEAD_JSON: json.dumps(note.head)})})
    return RecordDict({BLOB: ConfigRecord({BLOB: pack(note)})})


def from_records(records: RecordDict) -> Note:
    """The note in a Flower message; whatever is wrong with it is one line of error."""
    try:
        note = _from_blob(records) if BLOB in records.config_records else _from_parts(records)
    except Exception as error:  # whatever a stranger put into it
        raise WardroundError(f"cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(note.head, dict):
        raise WardroundError("its head is no mapping")
    arrays = note.arrays
    strange = [name for name, array in arrays.items() if str(array.dtype) not in KINDS]
    if strange:
        raise WardroundError(f"array '{strange[0]}' is of kind {arrays[strange[0]].dtype}, not {KINDS[0]}")
    numbers = {
        name: value
        for name, value in note.metrics.items()
        if isinstance(value, int | float) and not math.isnan(value)
    }
    return Note(note.head, numbers, arrays)


def _from_blob(records: RecordDict) -> Note:
    content = records.config_records[BLOB][BLOB]
    if not isinstance(content, bytes):
        raise ValueError("no byte string")
    return unpack(content)


def _from_parts(records: RecordDict) -> Note:
    """The form of a `hello`, and of all notes before version 0.2."""
    head = json.loads(str(records.config_records[HEAD][HEAD_JSON])) if HEAD in records.config_records else {}
    metrics: dict[str, Any] = dict(records.metric_records.get(METRICS, {}))
    arrays = {name: array.numpy() for name, array in records.array_records.get(ARRAYS, {}).items()}
    return Note(head, metrics, arrays)
