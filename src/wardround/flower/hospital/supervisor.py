"""Keeps a hospital's trainer daemon and its node running: starts them, and restarts them when they end.

`wardround join` checks the configuration, for which it loads everything that models and data may need, and then
becomes this process, which needs next to no memory. So this module imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from wardround.errors import ConfigError, WardroundError
from wardround.flower.environment import child_environment, short_path
from wardround.flower.log import Log
from wardround.flower.processes import Processes, last_line, one_at_a_time

__all__ = ["CLOCK_WRONG", "NOT_REGISTERED", "Plan", "Supervisor", "become_supervisor"]

NOT_REGISTERED = "this key is not registered with the federation"
CLOCK_WRONG = "this request was signed by a clock that differs"
"""What the gateway says to a node that it does not let in."""
TICK = 0.5
MAX_RESTART_SECONDS = 30.0
STABLE_SECONDS = 60.0
"""A process that ran this long had started well: its next failure counts as the first."""
USER_ERROR, STOPPED = 2, 130
"""The exit codes for a mistake that a restart does not fix, and after Ctrl-C or SIGTERM."""
EXPIRY_DAYS = 30
"""A certificate of the server that ends sooner is worth a warning."""
CLOCK_SECONDS = 4.0
"""Clocks may differ by this much; a SuperLink refuses signatures from more than 5 s in the future."""
Echo = Callable[[str], None]
MODULE = "wardround.flower.hospital"


@dataclass(frozen=True)
class Plan:
    """One hospital as its supervisor needs to know it."""

    name: str
    config: str
    state: str
    host: str
    port: int
    root_certificates: str | None
    """None: no TLS."""
    node_key: str | None
    policy: tuple[str, ...] = ()
    """What the policy says, one line each."""
    notices: tuple[str, ...] = ()
    """What the user has to know before it starts."""

    @property
    def superlink(self) -> str:
        """The server's address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        values = json.loads(text)
        for key in ("policy", "notices"):
            values[key] = tuple(values[key])
        return cls(**values)

    def trainer(self, socket_path: Path) -> list[str]:
        """Return the command that starts the trainer daemon."""
        memory = str(Path(self.state) / "memory")
        return [
            *(sys.executable, "-m", f"{MODULE}.trainer_daemon"),
            *("--config", self.config, "--socket", str(socket_path), "--memory", memory),
        ]

    def supernode(self, socket_path: Path) -> list[str]:
        """Return the command that starts the node."""
        tls = [] if self.root_certificates is None else ["--root-certificates", self.root_certificates]
        key = [] if self.node_key is None else ["--private-key", self.node_key]
        return [
            *(sys.executable, "-m", f"{MODULE}.supernode"),
            *("--superlink", self.superlink, *tls, *key, "--trainer-socket", str(socket_path)),
            *("--node-id-file", str(Path(self.state) / "node-id")),
        ]


def become_supervisor(plan: Plan) -> None:
    """Replace this process by the supervisor; does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"{MODULE}.supervisor", plan.to_json()])


class Supervisor:
    """Takes part in a federation until interrupted."""

    def __init__(self, plan: Plan, echo: Echo) -> None:
        self.plan, self.echo, self.state = plan, echo, Path(plan.state)

    def run(self) -> None:
        """Keep both processes running. Raises only if a restart cannot help."""
        plan = self.plan
        with one_at_a_time(self.state, f"hospital {plan.name}"), ExitStack() as stack:
            for line in plan.notices:
                self.echo(f"{plan.name}: {line}")
            self._wait_for_server()
            for line in plan.policy:
                self.echo(f"policy: {line}")
            socket_path = stack.enter_context(short_path(self.state / "trainer"))
            commands = {"trainer": plan.trainer(socket_path), "supernode": plan.supernode(socket_path)}
            processes = stack.enter_context(Processes(self.state, child_environment(self.state / "flwr")))
            self.echo(f"{plan.name}: joining {plan.superlink}; logs in {self.state}")
            supervised = [
                Supervised(name, command, processes, self.echo) for name, command in commands.items()
            ]
            while True:
                for process in supervised:
                    process.restart_if_ended(self.fatal_reason)
                processes.rotate_logs()
                time.sleep(TICK)

    def fatal_reason(self, name: str, code: int, output: str) -> str | None:
        """Return what is wrong if a restart would end the same way; None if a restart may help."""
        plan = self.plan
        if code == USER_ERROR:
            return last_line(output).removeprefix("wardround: ")
        if name == "supernode" and NOT_REGISTERED in output:
            return (
                f"{plan.superlink} does not know this hospital's key: its public key ({plan.node_key}.pub) has to be "
                "in the server's folder of keys"
            )
        if name == "supernode" and "CERTIFICATE_VERIFY_FAILED" in output:
            return f"{plan.superlink}: its certificate is not signed by {plan.root_certificates}"
        return None

    def _wait_for_server(self) -> None:
        """Wait until the server can be reached; raise if it never will (wrong certificate, TLS on one side only)."""
        announced = False
        authority = self.plan.root_certificates
        while True:
            hello = greet(self.plan.host, self.plan.port, None if authority is None else Path(authority))
            if hello.problem is None:
                break
            if not announced:
                self.echo(f"{self.plan.name}: waiting for {self.plan.superlink} ({hello.problem})")
            announced = True
            time.sleep(1.0)
        if hello.days_left is not None and hello.days_left < EXPIRY_DAYS:
            self.echo(
                f"{self.plan.name}: WARNING: the server's certificate expires in {hello.days_left:.0f} days; its "
                "operator renews it: wardround certs CERTS --host NAME --force"
            )
        if hello.ahead is not None and abs(hello.ahead) > CLOCK_SECONDS:
            way = "ahead of" if hello.ahead > 0 else "behind"
            self.echo(
                f"{self.plan.name}: WARNING: this clock is {abs(hello.ahead):.0f} s {way} the server's; a hospital "
                "whose clock is more than 5 s ahead or 5 minutes behind is refused: synchronise both (NTP)"
            )


@dataclass(frozen=True)
class Greeting:
    """What a server said to a first, anonymous request."""

    problem: str | None = None
    """Why it cannot be reached at the moment."""
    ahead: float | None = None
    """Seconds that this machine's clock is ahead of the server's; None: it did not say what time it is."""
    days_left: float | None = None
    """Until the server's certificate expires; None without TLS."""


def greet(host: str, port: int, authority: Path | None) -> Greeting:
    """Ask a server for its health; raises if waiting does not help."""
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
                return _health(plain, address)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                end = ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"]))
                return replace(_health(secured, address), days_left=max(0.0, (end - time.time()) / 86400))
    except ssl.SSLCertVerificationError as error:
        raise WardroundError(
            f"{address}: its certificate is not signed by {authority}, or not for {host} ({error.verify_message})"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER" or "HTTP" in str(error.reason):
            raise WardroundError(f"{address}: does not speak TLS; is it served with --insecure?") from None
        return Greeting(str(error.reason))
    except OSError as error:
        return Greeting(error.strerror or str(error))


def _health(connection: socket.socket, address: str) -> Greeting:
    connection.sendall(f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
    content = b""
    while b"\r\n\r\n" not in content and len(content) < 65536:
        part = connection.recv(4096)
        if not part:
            break
        content += part
    if not content.startswith(b"HTTP/"):
        if isinstance(connection, ssl.SSLSocket):
            return Greeting("it does not speak HTTP")
        raise WardroundError(
            f"{address}: speaks TLS only; leave --insecure away, and give certificate and key"
        )
    for line in content.split(b"\r\n")[1:]:
        if line.lower().startswith(b"date:"):
            with contextlib.suppress(ValueError, TypeError):
                theirs = parsedate_to_datetime(line[5:].decode("ascii", "replace").strip())
                return Greeting(None, (datetime.now(UTC) - theirs).total_seconds())
    return Greeting()


class Supervised:
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
            log.seek(self.log_offset if self.log_offset <= self._log_size() else 0)  # it was rotated
            output = log.read().decode(errors="replace")  # of this start, not of an earlier one
        reason = fatal_reason(self.name, code, output)
        if reason is not None:
            raise WardroundError(reason)
        stable = time.monotonic() - self.started_at > STABLE_SECONDS
        self.failures = 1 if stable else self.failures + 1
        wait = min(MAX_RESTART_SECONDS, 0.5 * 2**self.failures)
        self.echo(f"the {self.name} ended ({last_line(output)}); started again in {wait:g} s")
        self.restart_at = time.monotonic() + wait


def main(arguments: list[str] | None = None) -> None:
    """What `wardround join` becomes."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    try:
        Supervisor(Plan.from_json(text), Log("join")).run()
    except WardroundError as error:
        print(f"wardround: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt:
        print("wardround: stopped; run the same command to resume", file=sys.stderr)
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
