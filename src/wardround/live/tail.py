"""Read a file of JSON lines as it grows: what was read is not read again, a half-written line waits."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["CHUNK", "News", "Tail"]

CHUNK = 1 << 20  # bytes a turn: a long file must not keep the others waiting
FINGERPRINT = 256  # bytes before the offset that must still be there, or the file is another one


@dataclass
class News:
    """What one look at a file brought."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    restarted: bool = False
    """The file was replaced, cut or removed: what was read from it before no longer counts."""
    more: bool = False
    """There is more to read right now."""
    unreadable: int = 0
    """Whole lines that are not JSON objects."""


class Tail:
    """The lines of one file, each once. Every look costs O(new bytes)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        self.modified = 0.0
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what was read: the next look starts at the first line."""
        self.offset = 0
        self._before = b""
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> News:
        """The whole lines that were added since the last look."""
        try:
            stat = os.stat(self.path)
        except OSError:  # not there (yet, or any more), or not readable: the next look may find it
            restarted = self.offset > 0
            self.begin_again()
            return News(restarted=restarted)
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if seen == self._seen:
            return News()
        self.modified = stat.st_mtime
        try:
            with open(self.path, "rb") as file:
                return self._read(file, stat.st_size, seen)
        except OSError:
            return News()

    def _read(self, file: Any, size: int, seen: tuple[int, int, int]) -> News:
        if size < self.offset or not self._still_the_same(file):
            self.begin_again()
            return News(restarted=True, more=True)
        file.seek(self.offset)
        data = file.read(CHUNK)
        while len(data) >= CHUNK and b"\n" not in data and (rest := file.read(CHUNK)):
            data += rest
        self.bytes_read += len(data)
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        self._before = (self._before + whole)[-FINGERPRINT:]
        news = News(more=self.offset - len(whole) + len(data) < size)
        # While there is more, the same stat means something: look again.
        self._seen = None if news.more else seen
        lines = [line for line in whole.split(b"\n") if line.strip()]
        news.lines = [value for value in _values(lines) if isinstance(value, dict)]
        news.unreadable = len(lines) - len(news.lines)
        return news

    def _still_the_same(self, file: BinaryIO) -> bool:
        """A file that was rewritten and grew past our offset ends differently before it."""
        file.seek(self.offset - len(self._before))
        found = file.read(len(self._before))
        self.bytes_read += len(found)
        return found == self._before


def _values(lines: list[bytes]) -> list[Any]:
    try:
        values: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")  # twice as fast as one by one
        if len(values) == len(lines):
            return values
    except ValueError:
        pass
    return [_value(line) for line in lines]


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
