"""The trainer a hospital keeps resident: torch and the data are loaded once, not for every message.

`wardround join` starts it beside the SuperNode. It listens on a Unix socket that only its owner may open, has no
way to the network, and answers one request at a time: a length-prefixed blob in, a length-prefixed blob out. What
is in the blobs is the business of `messages.py`; here they are bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import WardroundError

if TYPE_CHECKING:
    from wardround.flower.hospital.hospital import Hospital

__all__ = ["SOCKET_VARIABLE", "Resident", "ask", "resident_socket"]

SOCKET_VARIABLE = "WARDROUND_RESIDENT"
"""The environment variable that tells a client app where the trainer listens."""
LENGTH = struct.Struct("<Q")
LONGEST_MESSAGE = 8 * 2**30
OK, FAILED = b"\0", b"\1"
PATIENCE = 180.0
"""Seconds a request waits for a trainer that is being started, or started anew."""
Answer = Callable[[bytes], bytes]


class Resident:
    """Serves `answer` on a Unix socket.

    >>> import tempfile, threading
    >>> path = Path(tempfile.mkdtemp()) / "trainer"
    >>> resident = Resident(path, bytes.upper)
    >>> threading.Thread(target=resident.serve_forever, daemon=True).start()
    >>> ask(path, b"train")
    b'TRAIN'
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path, self.answer = Path(path), answer
        self.path.unlink(missing_ok=True)  # of one that was killed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            raise WardroundError(f"{self.path}: cannot listen there ({error.strerror or error})") from None
        finally:
            os.umask(mask)
        self._listener.listen(16)

    def serve_forever(self) -> None:
        """One request after the other."""
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(OSError, EOFError):  # whoever asked has gone
                _send(connection, self._reply(_receive(connection)))

    def _reply(self, request: bytes) -> bytes:
        try:
            return OK + self.answer(request)
        except WardroundError as error:
            return FAILED + str(error).encode()
        except Exception as error:  # a defect costs this request, not the trainer with its loaded data
            traceback.print_exc()
            return FAILED + f"{type(error).__name__}: {error}".encode()


def ask(path: Path, request: bytes, patience: float = PATIENCE) -> bytes:
    """The trainer's answer. Waits for a trainer that is not there yet."""
    with _connected(Path(path), patience) as connection:
        try:
            _send(connection, request)
            reply = _receive(connection)
        except (OSError, EOFError):
            raise WardroundError("the hospital's trainer ended in the middle of its work") from None
    if reply[:1] != OK:
        raise WardroundError(reply[1:].decode(errors="replace"))
    return reply[1:]


def resident_socket() -> Path | None:
    """Where this process's trainer listens; None where there is none."""
    given = os.environ.get(SOCKET_VARIABLE)
    return Path(given) if given else None


def _connected(path: Path, patience: float) -> socket.socket:
    deadline = time.monotonic() + patience
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                raise WardroundError(
                    f"{path}: the hospital's trainer is not there ({error.strerror})"
                ) from None
            time.sleep(0.1)
        else:
            return connection


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(LENGTH.pack(len(content)))
    if content:  # the other side may have answered nothing with something, and hung up
        connection.sendall(content)


def _receive(connection: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > LONGEST_MESSAGE:
        raise EOFError("not a message of this program")
    return bytes(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, place = memoryview(content), 0
    while place < length:
        count = connection.recv_into(view[place:])
        if count == 0:
            raise EOFError("cut off")
        place += count
    return content


def _remembering(hospital: Hospital, path: Path) -> Answer:
    """A trainer that is started anew goes on where the last one ended."""
    last = path.read_bytes() if path.exists() else b""
    if last:
        hospital.recall(last)

    def answer(request: bytes) -> bytes:
        nonlocal last
        reply = hospital.answer(request)
        now = hospital.memory()
        if now != last:
            from wardround.runs.folder import replace_file

            replace_file(path, now)
            last = now
        return reply

    return answer


def main(arguments: list[str] | None = None) -> None:
    """Load a hospital's data, then answer until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.hospital.trainer_daemon")
    parser.add_argument("--config", type=Path, required=True, help="hospital.yaml")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument(
        "--memory", type=Path, help="a file for what the next round needs, if it is another process"
    )
    options = parser.parse_args(arguments)
    from wardround.flower.config import load_hospital
    from wardround.flower.hospital.hospital import Hospital

    try:
        hospital = Hospital(load_hospital(options.config))
        answer: Answer = hospital.answer
        if options.memory is not None:
            answer = _remembering(hospital, options.memory)
        resident = Resident(options.socket, answer)
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(2)
    with contextlib.suppress(KeyboardInterrupt):
        resident.serve_forever()


if __name__ == "__main__":
    main()
