"""Where `serve` and `join` write what they say: text or JSON lines, to the terminal and to a file that is rotated.

The format is handed on in the environment, because `join` becomes another process.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from wardround.errors import ConfigError
from wardround.files import replacing

__all__ = ["FILE_VARIABLE", "FORMATS", "FORMAT_VARIABLE", "LARGEST", "Log", "rotate"]

FORMATS = ("text", "json")
FORMAT_VARIABLE, FILE_VARIABLE = "WARDROUND_LOG_FORMAT", "WARDROUND_LOG_FILE"
LARGEST = 10 * 2**20
"""Bytes after which a log file is rotated."""
KEPT = 5
"""Older files that are kept: NAME.1 is the last one."""


class Log:
    """Writes one line per message.

    Args:
        program: serve or join; a field of JSON lines.
        stream: Where lines go beside the file; None: standard output.
        as_json: One JSON object per line instead of text. None: as the environment says.
        file: A file to write to as well. None: as the environment says.
        largest: Bytes after which the file is rotated.
    """

    def __init__(
        self,
        program: str,
        stream: TextIO | None = None,
        as_json: bool | None = None,
        file: Path | None = None,
        largest: int = LARGEST,
    ) -> None:
        named = os.environ.get(FILE_VARIABLE)
        self.program, self.stream, self.largest = program, stream, largest
        self.as_json = os.environ.get(FORMAT_VARIABLE) == "json" if as_json is None else as_json
        self.file = file if file is not None else Path(named) if named else None
        if self.file is not None:
            try:
                with open(self.file, "a", encoding="utf-8"):
                    pass
            except OSError as error:
                raise ConfigError(f"--log-file: {self.file} cannot be written ({error.strerror})") from None

    def __call__(self, message: str, event: str = "message", fields: Mapping[str, Any] | None = None) -> None:
        """Write one message; `event` and `fields` are for programs."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = message
        if self.as_json:
            values = {"time": stamp, "program": self.program, "event": event, "message": message.strip()}
            line = json.dumps({**values, **(fields or {})}, ensure_ascii=False, default=str)
        print(line, file=self.stream or sys.stdout, flush=True)
        if self.file is not None:
            rotate(self.file, self.largest)
            with open(self.file, "a", encoding="utf-8") as file:
                file.write((line if self.as_json else f"{stamp} {line}") + "\n")


def rotate(path: Path, largest: int = LARGEST, kept: int = KEPT, is_open: bool = False) -> None:
    """Move a file that has grown too large to PATH.1, the former one to PATH.2, and so on; the oldest is removed.

    Args:
        path: The file; it need not be there.
        largest: Bytes that are not too large yet.
        kept: Older files that are kept.
        is_open: Another process keeps the file open and appends to it: it is copied and emptied, not moved. What is
            written in between is lost.
    """
    try:
        if path.stat().st_size < largest:
            return
    except FileNotFoundError:
        return
    for number in range(kept - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    latest = path.with_name(f"{path.name}.1")
    if is_open:
        with replacing(latest, stat.S_IMODE(path.stat().st_mode)) as copy:
            shutil.copyfile(path, copy)
        os.truncate(path, 0)
    else:
        path.replace(latest)
