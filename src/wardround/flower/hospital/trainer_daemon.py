"""The trainer daemon of a hospital: it loads torch and the data once, not for every message.

`wardround join` starts it beside the SuperNode. It listens on a Unix socket that only its owner may open, has no
way to the network, and answers one request at a time: a length-prefixed blob in, a length-prefixed blob out.
`messages.py` defines what the blobs hold; here they are bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from wardround.errors import WardroundError
from wardround.flower.environment import release_memory

__all__ = ["SOCKET_VARIABLE", "TrainerDaemon", "ask", "trainer_socket", "wait_for_trainer"]

SOCKET_VARIABLE = "WARDROUND_TRAINER_SOCKET"
"""The environment variable that names the trainer's socket to a client app."""
LENGTH = struct.Struct("<Q")
MAX_MESSAGE_BYTES = 8 * 2**30
OK, FAILED = b"\0", b"\1"
PATIENCE = 180.0
"""Seconds a request waits for a trainer that is being started or restarted."""
IDLE_SECONDS = 10.0
"""Without a request for so long, a hospital is between rounds that are far apart, or between runs."""
Answer = Callable[[bytes], bytes]


class TrainerDaemon:
    """Serves `answer` on a Unix socket.

    >>> import tempfile, threading
    >>> path = Path(tempfile.mkdtemp()) / "trainer"
    >>> daemon = TrainerDaemon(path, bytes.upper)
    >>> threading.Thread(target=daemon.serve_forever, daemon=True).start()
    >>> ask(path, b"train")
    b'TRAIN'
    """

    def __init__(
        self,
        path: Path,
        answer: Answer,
        on_idle: Callable[[], None] = lambda: None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`on_idle` is called once when no request has come for `idle_seconds`: what can be built anew may go."""
        self.path, self.answer, self.on_idle, self.idle_seconds = Path(path), answer, on_idle, idle_seconds
        self.path.unlink(missing_ok=True)  # left by a daemon that was killed
        self._listener = _unix_socket()
        mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            raise WardroundError(f"{self.path}: cannot listen there ({error.strerror or error})") from None
        finally:
            os.umask(mask)
        self._listener.listen(16)

    def serve_forever(self) -> None:
        """Answer one request after the other."""
        self._listener.settimeout(self.idle_seconds)
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._listener.settimeout(None)
                self.on_idle()
                release_memory()
                continue
            self._listener.settimeout(self.idle_seconds)
            connection.settimeout(None)
            with connection, contextlib.suppress(OSError, EOFError):  # the client has gone
                _send(connection, self._reply(_receive(connection)))
            release_memory()

    def _reply(self, request: bytes) -> bytes:
        try:
            return OK + self.answer(request)
        except WardroundError as error:
            return FAILED + str(error).encode()
        except Exception as error:  # a defect costs this request, not the trainer with its loaded data
            traceback.print_exc()  # its words may hold what must stay here: they go into the trainer's log only
            return FAILED + f"{type(error).__name__}, see the hospital's log".encode()


def ask(path: Path, request: bytes, patience: float = PATIENCE) -> bytes:
    """Return the trainer's reply; wait up to `patience` seconds for a trainer that does not listen yet."""
    with _connect(Path(path), patience) as connection:
        try:
            _send(connection, request)
            reply = _receive(connection)
        except (OSError, EOFError):
            raise WardroundError("the hospital's trainer ended in the middle of its work") from None
    if reply[:1] != OK:
        raise WardroundError(reply[1:].decode(errors="replace"))
    return reply[1:]


def wait_for_trainer(path: Path) -> None:
    """Wait until the trainer listens: its data are loaded and its engine is compiled, so that it answers in time."""
    _connect(Path(path), math.inf).close()


def trainer_socket() -> Path | None:
    """Return the socket of this process's trainer daemon; None if it has none."""
    path = os.environ.get(SOCKET_VARIABLE)
    return Path(path) if path else None


def _unix_socket() -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise WardroundError(f"a hospital's trainer needs Unix sockets; {sys.platform} has none")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _connect(path: Path, patience: float) -> socket.socket:
    deadline = time.monotonic() + patience
    while True:
        connection = _unix_socket()
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
    if content:  # the other side may have replied to an empty message already, and closed
        connection.sendall(content)


def _receive(connection: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise EOFError("not a message of this program")
    return bytes(_receive_exactly(connection, length))


def _receive_exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, received = memoryview(content), 0
    while received < length:
        count = connection.recv_into(view[received:])
        if count == 0:
            raise EOFError("cut off")
        received += count
    return content


def main(arguments: list[str] | None = None) -> None:
    """Load a hospital's data, then answer requests until stopped."""
    parser = argparse.ArgumentParser(prog="python -m wardround.flower.hospital.trainer_daemon")
    parser.add_argument("--config", type=Path, required=True, help="hospital.yaml")
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket to listen on")
    parser.add_argument(
        "--memory", type=Path, help="file for the state that must survive a restart of this process"
    )
    options = parser.parse_args(arguments)
    from wardround.flower.config import load_hospital
    from wardround.flower.hospital.hospital import Hospital
    from wardround.flower.hospital.state_file import StateFile
    from wardround.flower.hospital.warm_up import warm_up

    try:
        config = load_hospital(options.config)
        hospital = Hospital.from_config(config, options.memory and options.memory.parent)
        if options.memory is not None:
            StateFile(options.memory, hospital).load()
        # Before it listens: the first order has a deadline.
        warm_up(hospital.engine, config.device, lambda line: print(f"{config.name}: {line}", flush=True))
        daemon = TrainerDaemon(options.socket, hospital.answer, hospital.setups.release)
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(2)
    with contextlib.suppress(KeyboardInterrupt):
        daemon.serve_forever()


if __name__ == "__main__":
    main()
