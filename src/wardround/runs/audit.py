"""The audit log: append-only JSON lines, each chained by SHA-256 to the one before.

A line is `{"line": n, "time": …, "event": …, …, "previous": h(n−1), "hash": h(n)}` with
h(n) = SHA-256 of the line's bytes before `, "hash"`. These hold h(n−1), so an edited, removed, inserted or
moved line breaks the chain at that place, and `verify` names it.

There is no key in this. Whoever can write the file can edit a line and compute the hashes of that line and all
later ones anew, or cut lines off the end: the chain is whole again, and `verify` alone finds nothing. Three
things show it:

* A head noted elsewhere (`wardround audit verify` prints it) and given to `verify` (`--head`) later. Lines up to the
  noted one cannot have changed; of later lines it says nothing.
* A running writer. An `AuditLog` remembers the last line it wrote and looks for it before it writes the next one.
  Where it is gone or another one stands in its place, the log gets a line `log-rewritten` with the number and hash
  that should be there. What happens to the log after the last line of the last writer, only a noted head shows.
* The hospitals of a federation. Every order brings the head of the log; a hospital keeps it, and refuses an order
  that comes with a shorter log. `verify_against` compares the log with all heads that a hospital was shown.

A line longer than `LONGEST_LINE`, or nested too deeply to be read, is refused by writer and reader alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wardround.errors import WardroundError
from wardround.files import locked, sync
from wardround.records import finite

__all__ = ["AuditLog", "ShownHead", "head_of", "read_shown_heads", "verify", "verify_against"]

GENESIS = "0" * 64
"""What the first line has before it."""
TORN = "torn-line"
"""The event that stands for a line whose writer was killed while writing it."""
REWRITTEN = "log-rewritten"
"""The event that says that a line which this writer wrote is no longer in the log."""
SEAL = re.compile(rb', "hash": "([0-9a-f]{64})"}\Z')
RESERVED = {"line", "time", "event", "previous", "hash"}
STEP = 65536
LONGEST_LINE = 2**22
"""Bytes of a line without its end: what twenty thousand clients sent fits. More in one line is refused."""
TOO_LONG = f"it is longer than {LONGEST_LINE} bytes"


class _Link(NamedTuple):
    """What the next line has to know of the last one."""

    line: int
    hash: str

    @property
    def seal(self) -> bytes:
        """The end of the line in the file."""
        return f', "hash": "{self.hash}"}}\n'.encode()


class AuditLog:
    """Appends to one log. Several processes may: each line is written, and flushed to disk, under a lock.

    >>> import tempfile
    >>> log = AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl")
    >>> log.append("joined", client="hospital-00")
    >>> log.append("quarantined", client="hospital-00", reason="broken scanner")
    >>> verify(log.path)
    2
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._written: tuple[_Link, int] | None = None
        """The last line that this object wrote, and where in the file it ends."""

    def append(self, event: str, **fields: Any) -> None:
        """Write one line; it is on the disk when this returns."""
        taken = RESERVED & set(fields)
        if taken:
            raise ValueError(f"audit fields may not be called {', '.join(sorted(taken))}")
        with ExitStack() as stack:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(locked(self.path))
            except OSError as error:
                raise WardroundError(f"{self.path}: cannot be written ({error.strerror})") from None
            last, fragment = self._end(file)
            if fragment:
                file.truncate(file.seek(0, os.SEEK_END) - len(fragment))
                torn = {"bytes": len(fragment), "text": fragment[:200].decode(errors="replace")}
                last = _write(file, last, TORN, torn)
            if self._written is not None and not _stands(file, *self._written):
                gone = self._written[0]
                last = _write(file, last, REWRITTEN, {"missing_line": gone.line, "missing_hash": gone.hash})
            self._written = _write(file, last, event, fields), file.seek(0, os.SEEK_END)

    def head(self) -> tuple[int, str]:
        """Number and hash of the last whole line; (0, sixty-four zeros) of an empty log."""
        try:
            with locked(self.path) as file:
                last, _ = self._end(file)
                return last.line, last.hash
        except OSError as error:
            raise WardroundError(f"{self.path}: cannot be read ({error.strerror})") from None

    def _end(self, file: BinaryIO) -> tuple[_Link, bytes]:
        """The last whole line, and what stands behind it without an end."""
        try:
            content, fragment = _tail(file)
            if max(len(content or b""), len(fragment)) > LONGEST_LINE:
                raise ValueError(TOO_LONG)
            return (_Link(0, GENESIS) if content is None else _parse(content)[0]), fragment
        except ValueError as error:
            raise WardroundError(
                f"{self.path}: its last line is no line of an audit log ({error}); "
                "keep the file as evidence under another name, and a new one is begun"
            ) from None


def verify(path: Path, head: str | None = None) -> int:
    """The number of lines of a whole log; an error that names the first broken line otherwise.

    `head` is a hash noted earlier: the log must still hold the line that had it.
    """
    return _check(path, head).line


def head_of(path: Path) -> str:
    """The hash of the last line of a whole log: note it elsewhere to prove later that nothing was cut off."""
    return _check(path, None).hash


class ShownHead(NamedTuple):
    """The head of a server's log as an order showed it to a hospital."""

    line: int
    hash: str
    place: int
    """The line of the hospital's own log that says so."""


def read_shown_heads(path: Path) -> dict[str, list[ShownHead]]:
    """The heads in a hospital's log (`outgoing.jsonl`) by run, oldest first."""
    heads: dict[str, list[ShownHead]] = {}
    for place, content in enumerate(_lines(path, cut_off=True), start=1):
        try:
            values = _loads(content)
            if "audit" not in values:
                continue
            line, hash = values["audit"]
            if not isinstance(line, int) or not isinstance(hash, str):
                raise ValueError("`audit` is no line number with a hash")
        except (ValueError, TypeError) as error:
            raise WardroundError(f"{path}: line {place} is no line of a hospital's log: {error}") from None
        heads.setdefault(str(values.get("run")), []).append(ShownHead(line, hash, place))
    return heads


def verify_against(path: Path, heads: Collection[ShownHead]) -> int:
    """Check that every head which a hospital was shown is still in the log, at its line.

    Returns:
        The number of lines of the log.

    Raises:
        WardroundError: The chain is broken, or a head is missing; the first one is named.
    """
    hashes = {0: GENESIS}
    last = _check(path, None, {head.line for head in heads}, hashes)
    for head in heads:
        if hashes.get(head.line) != head.hash:
            now = "has another hash" if head.line in hashes else f"is not among its {last.line} lines"
            raise WardroundError(
                f"{path}: line {head.line}, which the hospital was shown with the hash {head.hash} (line {head.place} "
                f"of its log), {now}: the audit log was cut off or written anew"
            )
    return last.line


def _check(
    path: Path, head: str | None, wanted: Collection[int] = (), hashes: dict[int, str] | None = None
) -> _Link:
    """The last line of a whole log; the hashes of the `wanted` lines go into `hashes`."""
    last, seen = _Link(0, GENESIS), head is None
    for number, content in enumerate(_lines(path), start=1):
        try:
            link, previous = _parse(content)
        except ValueError as error:
            raise WardroundError(f"{path}: line {number} is broken: {error}") from None
        if previous != last.hash or link.line != number:
            raise WardroundError(
                f"{path}: line {number} does not follow line {number - 1}: "
                "lines were removed, added, moved or edited here"
            )
        last, seen = link, seen or link.hash == head
        if hashes is not None and number in wanted:
            hashes[number] = link.hash
    if not seen:
        raise WardroundError(
            f"{path}: none of its {last.line} lines has the hash {head}: "
            "its end was cut off, or it was written anew"
        )
    return last


def _lines(path: Path, cut_off: bool = False) -> Iterator[bytes]:
    """One line after the other, so that no file is too large to check; `cut_off`: the last may lack its end."""
    try:
        with locked(path, shared=True) as file:  # a line that is being written would look cut off
            number = 0
            while content := file.readline(LONGEST_LINE + 1):
                number += 1
                if content.endswith(b"\n"):
                    yield content[:-1]
                elif len(content) > LONGEST_LINE:
                    raise WardroundError(f"{path}: line {number} is broken: {TOO_LONG}")
                elif not cut_off:
                    raise WardroundError(
                        f"{path}: line {number} is only half written: its writer was killed, "
                        "or the file was cut; the next writer closes it off"
                    )
    except OSError as error:
        raise WardroundError(f"{path}: cannot be read ({error.strerror})") from None


def _loads(content: bytes) -> dict[str, Any]:
    """A line's values; a `ValueError` in one sentence where there are none."""
    try:
        values = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    return values


def _parse(content: bytes) -> tuple[_Link, str]:
    """Check a line by itself; the line, and the hash that it names as the previous one."""
    seal = SEAL.search(content)
    if seal is None:
        raise ValueError("it has no hash at its end")
    claimed = seal[1].decode()
    if hashlib.sha256(content[: seal.start()]).hexdigest() != claimed:
        raise ValueError("its hash is not that of its content, which was edited")
    values = _loads(content)
    line, previous = values.get("line"), values.get("previous")
    if not isinstance(line, int) or not isinstance(previous, str):
        raise ValueError("it has no line number or no hash of the line before")
    return _Link(line, claimed), previous


def _write(file: BinaryIO, last: _Link, event: str, fields: dict[str, Any]) -> _Link:
    try:
        values = {"line": last.line + 1, "time": time.time(), "event": event, **finite(fields)}
        body = json.dumps(values | {"previous": last.hash}, allow_nan=False)[:-1].encode()
        _loads(body + b"}")  # what is written can be read
    except RecursionError:
        raise WardroundError(f"audit log: the event {event} is nested too deeply to be written") from None
    except ValueError as error:
        raise WardroundError(f"audit log: the event {event} cannot be written: {error}") from None
    link = _Link(last.line + 1, hashlib.sha256(body).hexdigest())
    if len(body) + len(link.seal) - 1 > LONGEST_LINE:
        raise WardroundError(f"audit log: the event {event} cannot be written: {TOO_LONG}")
    file.write(body + link.seal)
    sync(file)
    return link


def _stands(file: BinaryIO, link: _Link, end: int) -> bool:
    """Is the line with this hash still where it was written?"""
    file.seek(max(0, end - len(link.seal)))
    return file.read(len(link.seal)) == link.seal


def _tail(file: BinaryIO) -> tuple[bytes | None, bytes]:
    """The last whole line, None where there is none, and what stands behind it without an end."""
    place = file.seek(0, os.SEEK_END)
    content = b""
    while place > 0 and content.count(b"\n") < 2:
        if len(content) > 2 * (LONGEST_LINE + 1):  # a whole line and a fragment are shorter
            raise ValueError(TOO_LONG)
        step = min(place, STEP)
        place -= step
        file.seek(place)
        content = file.read(step) + content
    *whole, fragment = content.split(b"\n")
    return (whole[-1] if whole else None), fragment
