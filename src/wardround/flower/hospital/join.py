"""`wardround join`: starts a hospital's SuperNode and its trainer daemon, and restarts them when they end."""

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
from wardround.flower import OFFLINE
from wardround.flower.config import HospitalConfig, load_hospital
from wardround.flower.processes import Processes, check_port, last_line, one_at_a_time
from wardround.flower.server.gateway import NOT_REGISTERED
from wardround.flower.server.serve import TICK, child_environment, readable_file

__all__ = ["Joiner"]

LOOPBACK = "127.0.0.1"
POLL = os.environ.get("WARDROUND_POLL_SECONDS", "1.0")
"""Seconds between two looks for messages."""
MAX_RESTART_SECONDS = 30.0
MAX_SOCKET_PATH = 100
"""Characters; Unix allows few more."""
STABLE_SECONDS = 60.0
"""A process that ran this long had started well: its next failure counts as the first."""
USER_ERROR = 2
"""The exit code for a mistake that a restart does not fix."""
Echo = Callable[[str], None]


@dataclass(frozen=True)
class Joiner:
    """One hospital, as `hospital.yaml` describes it."""

    path: Path
    config: HospitalConfig
    insecure: bool = False

    @classmethod
    def load(cls, path: Path, insecure: bool = False) -> Joiner:
        """Read `hospital.yaml` and check everything that can be wrong before anything is started."""
        require("flwr", "flower")
        load_hospital(path)  # an error names the path as it was given
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
        """Where it keeps its logs and its saved state."""
        return self.config.state or self.path.parent / f".{self.config.name}"

    def server(self) -> tuple[str, int]:
        """Return host and port of the server."""
        match = re.fullmatch(r"\[?([^\[\]/]+)\]?:(\d+)", self.config.superlink)
        if match is None or not 0 < int(match[2]) < 65536:
            raise ConfigError(
                f"{self.path}: superlink: {self.config.superlink!r} is no address; for example fed.example.org:8000"
            )
        return match[1], int(match[2])

    def trainer(self, socket_path: Path) -> list[str]:
        """Return the command that starts the trainer daemon."""
        module = (sys.executable, "-m", "wardround.flower.hospital.trainer_daemon")
        memory = str(self.state / "memory")
        return [*module, "--config", str(self.path), "--socket", str(socket_path), "--memory", memory]

    def supernode(self, socket_path: Path) -> list[str]:
        """Return the command that starts the SuperNode; what follows `--poll` is for `flower-supernode`."""
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
            *(sys.executable, "-m", "wardround.flower.hospital.supernode"),
            *("--trainer-socket", str(socket_path)),
            *("--node-id-file", str(self.state / "node-id"), "--poll", POLL),
            *("--superlink", config.superlink, *tls, "--isolation", "process"),
            *("--host", LOOPBACK, "--port", str(config.runtime_port)),
            *("--superexec-auth-secret-file", str(self.state / "runtime.secret")),
            *("--node-config", f'name="{config.name}"'),
        ]

    def shell_script(self) -> str:
        """Return the commands for those who want to start the parts themselves."""
        socket_path = self.state / "trainer"
        state = shlex.quote(str(self.state))
        exports = {**OFFLINE, "FLWR_HOME": str(self.state / "flwr")}
        lines = [f"export {key}={shlex.quote(value)}" for key, value in sorted(exports.items())]
        lines += [
            f"(umask 077; mkdir -p {state}; head -c 32 /dev/urandom > {state}/runtime.secret)",
            f"{shlex.join(self.trainer(socket_path))} &",
            f"{shlex.join(self.supernode(socket_path))} &",
        ]
        return "\n".join(lines)

    def join(self, echo: Echo) -> None:
        """Take part until interrupted. Raises only if a restart cannot help."""
        with one_at_a_time(self.state, f"hospital {self.config.name}"), ExitStack() as stack:
            check_port(LOOPBACK, self.config.runtime_port, f"{self.path}: runtime_port")
            self._write_secret()
            self._check_server(echo)
            for line in self.config.policy.describe():
                echo(f"policy: {line}")
            socket_path = self.state / "trainer"
            if len(str(socket_path)) > MAX_SOCKET_PATH:
                temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="wardround-"))
                socket_path = Path(temporary) / "trainer"
            commands = {"trainer": self.trainer(socket_path), "supernode": self.supernode(socket_path)}
            processes = stack.enter_context(Processes(self.state, child_environment(self.state / "flwr")))
            echo(f"{self.config.name}: joining {self.config.superlink}; logs in {self.state}")
            supervised = [_Supervised(name, command, processes, echo) for name, command in commands.items()]
            while True:
                for process in supervised:
                    process.restart_if_ended(self._fatal_reason)
                time.sleep(TICK)

    def _fatal_reason(self, name: str, code: int, output: str) -> str | None:
        """Return what is wrong if a restart would end the same way; None if a restart may help."""
        if code == USER_ERROR:
            return last_line(output).removeprefix("wardround: ")
        if name == "supernode" and NOT_REGISTERED in output:
            return (
                f"{self.config.superlink} does not know this hospital's key: its public key "
                f"({self.config.node_key}.pub) has to be in the server's folder of keys, and the server started anew"
            )
        if name == "supernode" and "CERTIFICATE_VERIFY_FAILED" in output:
            return (
                f"{self.config.superlink}: its certificate is not signed by {self.config.root_certificates}"
            )
        return None

    def _write_secret(self) -> None:
        """Write the secret that protects the SuperNode's tasks from other users of this machine."""
        path = self.state / "runtime.secret"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))

    def _check_server(self, echo: Echo) -> None:
        """Wait until the server can be reached; raise if it never will (wrong certificate, TLS on one side only)."""
        announced = False
        while True:
            problem = _connection_problem(
                *self.server(), None if self.insecure else self.config.root_certificates
            )
            if problem is None:
                return
            if not announced:
                echo(f"{self.config.name}: waiting for {self.config.superlink} ({problem})")
            announced = True
            time.sleep(1.0)


def _connection_problem(host: str, port: int, authority: Path | None) -> str | None:
    """Return why the server cannot be reached at the moment, or None; raise if waiting does not help."""
    address = f"{host}:{port}"
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (ssl.SSLError, OSError):
            raise ConfigError(f"{authority}: not a certificate (PEM)") from None
    try:
        with socket.create_connection((host, port), timeout=30) as plain:
            if context is None:
                _check_plain_http(plain, address)
            else:
                context.wrap_socket(plain, server_hostname=host).close()
            return None
    except ssl.SSLCertVerificationError as error:
        raise WardroundError(
            f"{address}: its certificate is not signed by {authority}, or not for {host} ({error.verify_message})"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER" or "HTTP" in str(error.reason):
            raise WardroundError(f"{address}: does not speak TLS; is it served with --insecure?") from None
        return str(error.reason)
    except OSError as error:
        return error.strerror or str(error)


def _check_plain_http(connection: socket.socket, address: str) -> None:
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    if connection.recv(5) != b"HTTP/":
        raise WardroundError(
            f"{address}: speaks TLS only; leave --insecure away, and give certificate and key"
        )


class _Supervised:
    """A process that is restarted when it ends, after a wait that grows with each failure."""

    def __init__(self, name: str, command: list[str], processes: Processes, echo: Echo) -> None:
        self.name, self.command, self.processes, self.echo = name, command, processes, echo
        self.failures = 0
        self.restart_at: float | None = None
        self._start()

    def _start(self) -> None:
        self.started_at, self.restart_at = time.monotonic(), None
        self.log_offset = self._log_size()
        self.process = self.processes.start(self.name, self.command, inherit_stdout=True)

    def _log_size(self) -> int:
        log = self.processes.log(self.name)
        return log.stat().st_size if log.exists() else 0

    def restart_if_ended(self, fatal_reason: Callable[[str, int, str], str | None]) -> None:
        """Restart the process if it has ended and its wait is over.

        Args:
            fatal_reason: Given name, exit code and output, says why a restart cannot help; None if it may.
        """
        if self.restart_at is not None:
            if time.monotonic() >= self.restart_at:
                self._start()
            return
        code = self.process.poll()
        if code is None:
            return
        with open(self.processes.log(self.name), "rb") as log:
            log.seek(self.log_offset)
            output = log.read().decode(errors="replace")  # of this start, not of an earlier one
        reason = fatal_reason(self.name, code, output)
        if reason is not None:
            raise WardroundError(reason)
        stable = time.monotonic() - self.started_at > STABLE_SECONDS
        self.failures = 1 if stable else self.failures + 1
        wait = min(MAX_RESTART_SECONDS, 0.5 * 2**self.failures)
        self.echo(f"the {self.name} ended ({last_line(output)}); started again in {wait:g} s")
        self.restart_at = time.monotonic() + wait
