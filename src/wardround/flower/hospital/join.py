"""`wardround join`: a hospital's SuperNode and its resident trainer, kept running."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from wardround.errors import ConfigError, WardroundError, require
from wardround.flower import QUIET
from wardround.flower.config import HospitalConfig, load_hospital
from wardround.flower.processes import Processes, check_port, last_line, one_at_a_time
from wardround.flower.server.gateway import NOT_REGISTERED
from wardround.flower.server.serve import TICK, child_environment, readable_file

__all__ = ["Joiner"]

LOOPBACK = "127.0.0.1"
POLL = os.environ.get("WARDROUND_POLL_SECONDS", "1.0")
"""Seconds between two looks for messages."""
LONGEST_WAIT = 30.0
LONGEST_SOCKET_NAME = 100
"""Characters; Unix allows few more."""
SETTLED = 60.0
"""A process that ran this long has started well: its next failure is a new one."""
USER_ERROR = 2
Echo = Callable[[str], None]


@dataclass(frozen=True)
class Joiner:
    """One hospital, as `hospital.yaml` describes it."""

    path: Path
    config: HospitalConfig
    insecure: bool = False

    @classmethod
    def load(cls, path: Path, insecure: bool = False) -> Joiner:
        """Check everything that can be wrong before anything is started."""
        require("flwr", "flower")
        load_hospital(path)  # what is wrong in it is told with the name that was given
        path = path.resolve()
        joiner = cls(path, load_hospital(path), insecure)
        joiner.server()
        if not insecure:
            readable_file(joiner.config.root_certificates, f"{path}: root_certificates")
            key = readable_file(joiner.config.node_key, f"{path}: node_key")
            if key.stat().st_mode & 0o077:
                raise ConfigError(
                    f"{key}: others may read this private key; run: chmod 600 {shlex.quote(str(key))}"
                )
        return joiner

    @property
    def state(self) -> Path:
        """Where it keeps logs and what it remembers."""
        return self.config.state or self.path.parent / f".{self.config.name}"

    def server(self) -> tuple[str, int]:
        """Host and port of the server."""
        match = re.fullmatch(r"\[?([^\[\]/]+)\]?:(\d+)", self.config.superlink)
        if match is None or not 0 < int(match[2]) < 65536:
            raise ConfigError(
                f"{self.path}: superlink: {self.config.superlink!r} is no address; for example fed.example.org:8000"
            )
        return match[1], int(match[2])

    def trainer(self, socket_path: Path) -> list[str]:
        """The command of the resident trainer."""
        module = (sys.executable, "-m", "wardround.flower.hospital.trainer_daemon")
        memory = str(self.state / "memory")
        return [*module, "--config", str(self.path), "--socket", str(socket_path), "--memory", memory]

    def supernode(self, socket_path: Path) -> list[str]:
        """The command of the SuperNode; what follows `--poll` is for `flower-supernode`."""
        config = self.config
        tls = (
            ["--insecure"]
            if self.insecure
            else [
                *("--root-certificates", str(config.root_certificates)),
                *("--auth-supernode-private-key", str(config.node_key)),
            ]
        )
        return [
            *(sys.executable, "-m", "wardround.flower.hospital.supernode", "--resident", str(socket_path)),
            *("--remember", str(self.state / "node-id"), "--poll", POLL),
            *("--superlink", config.superlink, *tls, "--isolation", "process"),
            *("--host", LOOPBACK, "--port", str(config.runtime_port)),
            *("--superexec-auth-secret-file", str(self.state / "runtime.secret")),
            *("--node-config", f'name="{config.name}"'),
        ]

    def printed(self) -> str:
        """The commands for those who want to start the parts themselves."""
        listens = self.state / "trainer"
        state = shlex.quote(str(self.state))
        exports = {**QUIET, "FLWR_HOME": str(self.state / "flwr")}
        lines = [f"export {key}={shlex.quote(value)}" for key, value in sorted(exports.items())]
        lines += [
            f"(umask 077; mkdir -p {state}; head -c 32 /dev/urandom > {state}/runtime.secret)",
            f"{shlex.join(self.trainer(listens))} &",
            f"{shlex.join(self.supernode(listens))} &",
        ]
        return "\n".join(lines)

    def join(self, echo: Echo) -> None:
        """Take part until interrupted. Raises only where trying again cannot help."""
        with one_at_a_time(self.state, f"hospital {self.config.name}"), ExitStack() as stack:
            check_port(LOOPBACK, self.config.runtime_port, f"{self.path}: runtime_port")
            self._write_secret()
            self._check_server(echo)
            listens = self.state / "trainer"
            if len(str(listens)) > LONGEST_SOCKET_NAME:
                listens = (
                    Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wardround-"))) / "trainer"
                )
            commands = {"trainer": self.trainer(listens), "supernode": self.supernode(listens)}
            processes = stack.enter_context(Processes(self.state, child_environment(self.state / "flwr")))
            echo(f"{self.config.name}: joining {self.config.superlink}; logs in {self.state}")
            kept = [_Kept(name, command, processes, echo) for name, command in commands.items()]
            while True:
                for process in kept:
                    process.look_after(self._why_hopeless)
                time.sleep(TICK)

    def _why_hopeless(self, name: str, code: int, words: str) -> str | None:
        """What is wrong, where a new start would end the same way."""
        if code == USER_ERROR:
            return last_line(words).removeprefix("wardround: ")
        if name == "supernode" and NOT_REGISTERED in words:
            return (
                f"{self.config.superlink} does not know this hospital's key: its public key "
                f"({self.config.node_key}.pub) has to be in the server's folder of keys, and the server started anew"
            )
        if name == "supernode" and "CERTIFICATE_VERIFY_FAILED" in words:
            return (
                f"{self.config.superlink}: its certificate is not signed by {self.config.root_certificates}"
            )
        return None

    def _write_secret(self) -> None:
        """Who takes tasks from the SuperNode has to show this: other users of the machine cannot."""
        path = self.state / "runtime.secret"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))

    def _check_server(self, echo: Echo) -> None:
        """Is it there, and does it speak as we do? One that is not there yet is waited for."""
        said = False
        while True:
            problem = _try_server(*self.server(), None if self.insecure else self.config.root_certificates)
            if problem is None:
                return
            if not said:
                echo(f"{self.config.name}: waiting for {self.config.superlink} ({problem})")
            said = True
            time.sleep(1.0)


def _try_server(host: str, port: int, authority: Path | None) -> str | None:
    """Why the server cannot be reached just now; raises where waiting does not help."""
    where = f"{host}:{port}"
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (ssl.SSLError, OSError):
            raise ConfigError(f"{authority}: not a certificate (PEM)") from None
    try:
        with socket.create_connection((host, port), timeout=30) as plain:
            if context is None:
                return _speaks_plainly(plain, where)
            with context.wrap_socket(plain, server_hostname=host):
                return None
    except ssl.SSLCertVerificationError as error:
        raise WardroundError(
            f"{where}: its certificate is not signed by {authority}, or not for {host} ({error.verify_message})"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER" or "HTTP" in str(error.reason):
            raise WardroundError(f"{where}: does not speak TLS; is it served with --insecure?") from None
        return str(error.reason)
    except OSError as error:
        return error.strerror or str(error)


def _speaks_plainly(connection: socket.socket, where: str) -> str | None:
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode())
    if connection.recv(5) == b"HTTP/":
        return None
    raise WardroundError(f"{where}: speaks TLS only; leave --insecure away, and give certificate and key")


class _Kept:
    """A process that is started again when it ends."""

    def __init__(self, name: str, command: list[str], processes: Processes, echo: Echo) -> None:
        self.name, self.command, self.processes, self.echo = name, command, processes, echo
        self.failures = 0
        self.again: float | None = None
        self._start()

    def _start(self) -> None:
        self.since, self.again = time.monotonic(), None
        self.place = self._size()
        self.process = self.processes.start(self.name, self.command, speaks=True)

    def _size(self) -> int:
        log = self.processes.log(self.name)
        return log.stat().st_size if log.exists() else 0

    def look_after(self, why_hopeless: Callable[[str, int, str], str | None]) -> None:
        if self.again is not None:
            if time.monotonic() >= self.again:
                self._start()
            return
        code = self.process.poll()
        if code is None:
            return
        with open(self.processes.log(self.name), "rb") as log:
            log.seek(self.place)
            words = log.read().decode(errors="replace")  # of this start, not of an earlier one
        reason = why_hopeless(self.name, code, words)
        if reason is not None:
            raise WardroundError(reason)
        self.failures = 1 if time.monotonic() - self.since > SETTLED else self.failures + 1
        wait = min(LONGEST_WAIT, 0.5 * 2**self.failures)
        self.echo(f"the {self.name} ended ({last_line(words)}); started again in {wait:g} s")
        self.again = time.monotonic() + wait
