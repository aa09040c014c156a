"""How the files of a run folder show that they are whole, so that damage is an error and never another result.

* config.yaml and summary.json carry a hash of their own values (`seal`).
* checkpoint.pt carries a hash of its bytes, as the comment of the ZIP archive that it is (`add_hash`): `torch.load`
  reads it as any other.
* rounds.jsonl and clients.jsonl grow: the checkpoint and the summary hold how long they were, and the hash of that
  part (`Extent`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wardround.errors import DataError

__all__ = [
    "HASH",
    "SEALED_SINCE",
    "Extent",
    "Growing",
    "add_hash",
    "check_hash",
    "check_seal",
    "missing_rounds",
    "seal",
]

HASH = "sha256"
SEALED_SINCE = 3
"""The schema version since which files carry hashes; without one, an older file is taken as it is."""
MARK = b"wardround-sha256:"
END_OF_ZIP = b"PK\x05\x06"
END_OF_ZIP_BYTES = 22


def seal(values: Mapping[str, Any]) -> str:
    """The hash of plain values, whatever the order of their keys; a hash among them does not count.

    >>> seal({"a": 1, "b": 2}) == seal({"b": 2, "a": 1, "sha256": "…"})
    True
    """
    unsealed = {key: value for key, value in values.items() if key != HASH}
    return hashlib.sha256(json.dumps(unsealed, sort_keys=True, default=str).encode()).hexdigest()


def check_seal(values: Mapping[str, Any], sealed: Mapping[str, Any], where: Path, advice: str) -> None:
    """Refuse values that are not those their hash was made of.

    Args:
        values: All of them.
        sealed: The part that holds hash and schema version; older schemas have no hash.
        where: The file, for the message.
        advice: What to do.
    """
    try:
        required = int(sealed.get("schema", 1)) >= SEALED_SINCE
        whole = sealed[HASH] == seal(values) if HASH in sealed else not required
    except (TypeError, ValueError):  # keys or a version that no run writes
        whole = False
    if not whole:
        raise DataError(f"{where}: damaged or edited, its values are not those of its hash; {advice}")


def add_hash(archive: Path) -> None:
    """Give a ZIP archive the hash of its bytes as its comment; it is read in pieces, since it may be large."""
    size = len(MARK) + 2 * hashlib.sha256().digest_size
    with open(archive, "r+b") as file:
        file.seek(-END_OF_ZIP_BYTES, os.SEEK_END)
        if file.read(4) != END_OF_ZIP:
            raise ValueError("not a ZIP archive without a comment")
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", size) + MARK)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(digest.encode())


def check_hash(archive: bytes) -> bool | None:
    """Is the archive what its comment says? None where it has no such comment."""
    place = len(archive) - 2 * hashlib.sha256().digest_size
    content, digest = archive[:place], archive[place:]
    if not content.endswith(MARK):
        return None
    return hashlib.sha256(content).hexdigest().encode() == digest


@dataclass(frozen=True)
class Extent:
    """How long a file was at some moment, and the hash of that part."""

    length: int
    sha256: str

    def plain(self) -> dict[str, Any]:
        return {"bytes": self.length, HASH: self.sha256}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Extent:
        return cls(values["bytes"], values[HASH])

    def check(self, path: Path, advice: str, exact: bool = False) -> bytes:
        """Return this part of the file, or raise; an `exact` file has nothing behind it."""
        content = path.read_bytes() if path.exists() else b""
        if len(content) < self.length:
            raise DataError(
                f"{path}: damaged, {len(content)} bytes where the run had written {self.length}; {advice}"
            )
        part = content[: self.length]
        if hashlib.sha256(part).hexdigest() != self.sha256 or (exact and len(content) > self.length):
            raise DataError(f"{path}: damaged, not what the run had written; {advice}")
        return part


@dataclass
class Growing:
    """The extent of a file that is being appended to."""

    length: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def add(self, content: bytes) -> Growing:
        self.length += len(content)
        self._digest.update(content)
        return self

    @property
    def extent(self) -> Extent:
        return Extent(self.length, self._digest.hexdigest())


def missing_rounds(numbers: Sequence[int], last: int | None = None) -> str | None:
    """What is wrong with the numbers of the rounds, which must be 1, 2, 3, … up to `last`; None: nothing.

    >>> missing_rounds([1, 2, 6, 7]), missing_rounds([1, 2], last=3), missing_rounds([1, 2])
    ('rounds 3 to 5 are missing', 'round 3 is missing', None)
    """
    end = max(numbers, default=0) if last is None else last
    absent = sorted(set(range(1, end + 1)) - set(numbers))
    if absent:
        upto = next((a for a, b in itertools.pairwise(absent) if b > a + 1), absent[-1])
        return (
            f"round {absent[0]} is missing"
            if upto == absent[0]
            else f"rounds {absent[0]} to {upto} are missing"
        )
    if list(numbers) != list(range(1, end + 1)):
        return "its rounds are not in order, or more than were asked for"
    return None
