"""`wardround serve`: a SuperLink on loopback, a gateway in front of it and our server app on it."""

from __future__ import annotations

import json
import shlex
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import ConfigError, WardroundError, require
from wardround.flower import OFFLINE
from wardround.flower.certificates import public_keys, readable_file
from wardround.flower.config import FederationConfig, load_federation
from wardround.flower.environment import child_environment, short_path
from wardround.flower.preflight.findings import Finding, report
from wardround.flower.preflight.server import check_server, check_while_running
from wardround.flower.processes import (
    Processes,
    check_port,
    console_script,
    free_port,
    last_line,
    one_at_a_time,
)
from wardround.flower.scaffold import write_app
from wardround.flower.server.console import AuditFollower, RoundConsole, say
from wardround.flower.server.delivery import is_delivery_pending
from wardround.flower.server.doorbell import DOORBELL_VARIABLE
from wardround.flower.server.key_folder import KeyFolder
from wardround.flower.server.metrics_server import serve_metrics
from wardround.flower.server.warning_board import WarningBoard
from wardround.records import Summary
from wardround.runs.audit import AuditLog
from wardround.runs.extension import extend
from wardround.runs.folder import RunFolder
from wardround.runs.overview import GATEWAY_COUNTERS, RunOverview
from wardround.runs.quarantine import AUDIT_LOG

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from wardround.flower.server.superlink import SuperLinkControl

__all__ = ["INSECURE_WARNING", "Server"]

INSECURE_WARNING = (
    "INSECURE: no TLS and no keys. Whoever reaches this port can join, and read and change all that is sent."
)
LOOPBACK = "127.0.0.1"
SUPERLINK = "flower-superlink"
IN_MEMORY = ":flwr-in-memory:"
START_SECONDS = 180.0
"""Time that the parts have to start."""
PORT_ATTEMPTS = 3
PORT_TAKEN = "address already in use"
"""What a SuperLink says whose port was taken."""
TICK = 0.5
OUTCOME_POLL_SECONDS = 15.0
"""Time between two questions to the SuperLink, which writes each of them into its log."""
Echo = Callable[[str], None]


@dataclass(frozen=True)
class Server:
    """The server of one federation, as `fed.yaml` describes it."""

    path: Path
    config: FederationConfig
    out: Path
    insecure: bool = False

    @classmethod
    def load(cls, path: Path, out: Path, insecure: bool = False) -> Server:
        """Read `fed.yaml` and check the files that it names."""
        server = cls.read(path, out, insecure)
        path = server.path
        if not insecure:
            for key in ("certificate", "certificate_key", "root_certificates"):
                readable_file(getattr(server.config.federation, key), f"{path}: federation.{key}")
            server.keys()
        return server

    @classmethod
    def read(cls, path: Path, out: Path, insecure: bool = False) -> Server:
        """Read `fed.yaml`."""
        require("flwr", "flower")
        load_federation(path)  # an error names the path as it was given
        path, out = path.resolve(), out.resolve()
        return cls(path, load_federation(path), out, insecure)

    def check(self, connect: bool = False) -> list[Finding]:
        """What can be known before anything is started; with `connect` also whether its gateway answers."""
        return check_server(self.config, self.path, self.out, self.state, self.insecure, connect)

    def preflight(self, echo: Echo) -> None:
        """Say what somebody should know before it starts; raise what would keep it from working."""
        self.config.adopt_former_folder(self.out)
        summary = self.folder.summary()
        if summary is None or not summary.finished or is_delivery_pending(self.folder):
            report(self.check(), echo)

    @cached_property
    def folder(self) -> RunFolder:
        """The run folder."""
        return self.config.find_folder(self.out)

    @property
    def state(self) -> Path:
        """Where its processes keep their logs."""
        return self.config.federation.state or self.out / ".federation" / self.config.run.run_name

    def keys(self) -> dict[str, EllipticCurvePublicKey] | None:
        """Return the hospitals' public keys by name; None without TLS."""
        if self.insecure:
            return None
        if self.config.federation.node_keys is None:
            raise ConfigError(
                f"{self.path}: federation.node_keys is required: the folder with the hospitals' public keys "
                "(`wardround certs`), or serve with --insecure"
            )
        return public_keys(self.config.federation.node_keys)

    def superlink(self, port: int) -> list[str]:
        """Return the command that starts the SuperLink."""
        tls = self._tls("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
        console_script(SUPERLINK)  # says what to install
        return [
            *(sys.executable, "-m", "wardround.flower.server.flower_program", SUPERLINK),
            *(["--insecure"] if self.insecure else [*tls, "--enable-supernode-auth"]),
            # In memory: the run folder has all that counts, and a SuperLink that is started anew is told the rest.
            *("--host", LOOPBACK, "--port", str(port), "--database", IN_MEMORY),
            "--disable-runtime-dependency-installation",
        ]

    def gateway(self, port: int, doorbell: Path) -> list[str]:
        """Return the command that starts the gateway; `port` is the SuperLink's."""
        federation = self.config.federation
        tls = self._tls("--certificate", "--certificate-key", "--root-certificates")
        keys = [] if self.insecure else ["--node-keys", str(federation.node_keys)]
        scheme = "http" if self.insecure else "https"
        return [
            *(sys.executable, "-m", "wardround.flower.server.gateway"),
            *("--host", federation.host, "--port", str(federation.port)),
            *("--to", f"{scheme}://{LOOPBACK}:{port}", "--doorbell", str(doorbell), *tls, *keys),
            *("--counters", str(self.state / GATEWAY_COUNTERS)),
        ]

    def _health(self, port: int) -> list[str]:
        if self.insecure:
            return ["curl", "--silent", "--fail", f"http://{LOOPBACK}:{port}/health"]
        authority = str(self.config.federation.root_certificates)
        return ["curl", "--silent", "--fail", "--cacert", authority, f"https://{LOOPBACK}:{port}/health"]

    def run_options(self) -> dict[str, str]:
        """Return the server app's run configuration."""
        return {"config": str(self.path), "out": str(self.out)}

    def shell_script(self) -> str:
        """Return the commands for those who want to start the parts themselves."""
        port = 8001
        app, home = self.state / "app", self.state / "flwr"
        keys = self.config.federation.node_keys
        options = " ".join(f"{key}={json.dumps(value)}" for key, value in self.run_options().items())
        connection = f'[superlink]\ndefault = "ward"\n\n[superlink.ward]\naddress = "{LOOPBACK}:{port}"\n'
        connection += (
            "insecure = true\n"
            if self.insecure
            else f'root-certificates = "{self.config.federation.root_certificates}"\n'
        )
        lines = [f"export {key}={shlex.quote(value)}" for key, value in sorted(OFFLINE.items())]
        lines += [
            f"export FLWR_HOME={shlex.quote(str(home))}",
            f"export {DOORBELL_VARIABLE}={shlex.quote(str(self.state / 'doorbell'))}",
            f"mkdir -p {shlex.quote(str(home))}",
            f"cat > {shlex.quote(str(home / 'config.toml'))} <<'EOF'\n{connection}EOF",
            f"{shlex.join(self.superlink(port))} &",
            f"{shlex.join(self.gateway(port, self.state / 'doorbell'))} &",
            f"until {shlex.join(self._health(port))} > /dev/null; do sleep 1; done",
        ]
        lines += [
            shlex.join(["flwr", "supernode", "register", str(Path(str(keys)) / f"{name}.pub"), "ward"])
            for name in self.keys() or {}
        ]
        lines += [
            shlex.join(["wardround", "flower", "init", str(app)]),
            shlex.join(["flwr", "run", str(app), "ward", "--run-config", options]),
        ]
        return "\n".join(lines)

    def extend(self, run: Path) -> None:
        """Begin where a run of the same configuration with fewer rounds stopped."""
        extend(RunFolder(run), self.folder, self.config.run, self.config.plain(), private=True)

    def serve(self, echo: Echo) -> Summary:
        """Run the federation to its end and return its summary. Stops everything when it is interrupted."""
        federation = self.config.federation
        summary = self.folder.summary()
        if summary is not None and summary.finished and not is_delivery_pending(self.folder):
            return summary
        with one_at_a_time(self.state, "this federation"), ExitStack() as stack:
            check_port(federation.host, federation.port, f"{self.path}: federation.port")
            environment = child_environment(self.state / "flwr")
            doorbell = stack.enter_context(short_path(self.state / "doorbell"))
            environment[DOORBELL_VARIABLE] = str(doorbell)
            with Processes(self.state, environment) as processes:
                port = self._start_superlink(processes)
                control = self._control(port)
                try:
                    control.stop_stale_runs()
                    if (keys := self.keys()) is not None:
                        control.register_only(keys)
                    processes.start("gateway", self.gateway(port, doorbell))
                    self._wait_for_folder_lock(processes)
                    board = self._warning_board()
                    run = control.start_run(write_app(self.state / "app", force=True), self.run_options())
                    secure = "without TLS" if self.insecure else "TLS, registered keys only"
                    echo(f"serving on {federation.host}:{federation.port} ({secure}); logs in {self.state}")
                    with serve_metrics(self.folder.path, federation.metrics_host, federation.metrics_port):
                        return self._watch(processes, control, run, board, echo)
                finally:
                    control.close()

    def _watch(
        self, processes: Processes, control: SuperLinkControl, run: int, board: WarningBoard, echo: Echo
    ) -> Summary:
        overview = board.overview
        last_round, events = overview.round, AuditFollower(self.folder.path / AUDIT_LOG)
        console = RoundConsole(overview, self.config.run.rounds)
        if overview.evaluated is not None:  # before this start: what follows is compared with it
            console.describe(overview.evaluated)
        keys = None if self.insecure else KeyFolder(Path(str(self.config.federation.node_keys)))
        before = self._summary_time()
        echo(
            f"waiting for {self.config.clients} hospitals; {last_round} of {self.config.run.rounds} rounds done"
        )
        asked, outcome = time.monotonic(), None
        while outcome is None:
            time.sleep(TICK)
            processes.check()
            processes.rotate_logs()
            if keys is not None:
                self._follow_keys(keys, control, echo)
            board.update()
            if self._summary_time() not in (0.0, before) or time.monotonic() - asked > OUTCOME_POLL_SECONDS:
                asked, outcome = time.monotonic(), _ask_outcome(control, run)
            for message in events.new_messages():
                say(echo, message)
            for record in overview.poll():
                messages = console.describe(record)
                for message in (
                    messages if record.round > last_round else ()
                ):  # read again where files were cut
                    say(echo, message)
                last_round = max(last_round, record.round)
        summary = self.folder.summary() if self._summary_time() not in (0.0, before) else None
        if summary is None or outcome:
            reason = (summary.reason if summary else None) or outcome or "it left no summary"
            raise WardroundError(f"the run failed: {reason} ({processes.log('superlink')})")
        return summary

    def _warning_board(self) -> WarningBoard:
        """The run's open warnings as they are now; those of the start were printed."""
        overview = RunOverview(self.folder.path)
        overview.poll()
        check = partial(check_while_running, self.config, self.path, self.insecure)
        board = WarningBoard(check, AuditLog(self.folder.path / AUDIT_LOG), overview)
        board.update()
        return board

    def _follow_keys(self, folder: KeyFolder, control: SuperLinkControl, echo: Echo) -> None:
        """Tell the SuperLink what an operator has changed in the folder of keys, and write it down."""
        before, problem = folder.keys, folder.problem
        if folder.changed():
            text = folder.describe_change(before)
            try:
                control.register_only(folder.keys)
            except (WardroundError, OSError) as error:  # the gateway obeys all the same
                echo(
                    f"keys of hospitals: {text}: the SuperLink says: {error}; a key that was revoked comes back when "
                    "the server is started anew, or make a new one"
                )
            AuditLog(self.folder.path / AUDIT_LOG).append(
                "keys-changed", text=text, hospitals=sorted(folder.keys)
            )
        if folder.problem is not None and folder.problem != problem:
            echo(f"keys of hospitals: {folder.problem}; those before stay in force")

    def _summary_time(self) -> float:
        """When the summary was last written. A change means that the run has probably ended."""
        try:
            return self.folder.summary_path.stat().st_mtime
        except FileNotFoundError:  # none yet, or the server app has just removed that of the run it resumes
            return 0.0

    def _wait_for_folder_lock(self, processes: Processes) -> None:
        """Wait until the run folder is free: a server app whose SuperLink was killed takes a moment to notice."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with self.folder.locked(private=True):
                    return
            except ConfigError:
                raise
            except WardroundError:
                if time.monotonic() > deadline:
                    raise
                processes.check()
                time.sleep(TICK)

    def _control(self, port: int) -> SuperLinkControl:
        from wardround.flower.server.superlink import SuperLinkControl

        authority = self.config.federation.root_certificates
        return SuperLinkControl(f"{LOOPBACK}:{port}", None if self.insecure else authority)

    def _start_superlink(self, processes: Processes) -> int:
        """Start the SuperLink on a port of its own, and return the port.

        Between the moment in which a port is free and the one in which the SuperLink listens, another program may
        have taken it: then another port is tried.
        """
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = free_port()
            processes.start("superlink", self.superlink(port))
            try:
                self._wait_until_healthy(port, processes)
                return port
            except WardroundError:
                is_taken = PORT_TAKEN in processes.log_tail("superlink").lower()
                if attempt == PORT_ATTEMPTS or not is_taken or not processes.discard("superlink"):
                    raise
        raise AssertionError("the loop returns or raises")

    def _wait_until_healthy(self, port: int, processes: Processes) -> None:
        scheme = "http" if self.insecure else "https"
        authority = self.config.federation.root_certificates
        context = None if self.insecure else ssl.create_default_context(cafile=str(authority))
        deadline = time.monotonic() + START_SECONDS
        while True:
            processes.check()
            try:
                with urllib.request.urlopen(
                    f"{scheme}://{LOOPBACK}:{port}/health", timeout=5, context=context
                ):
                    return
            except OSError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise ConfigError(
                        f"{self.config.federation.certificate}: not signed by {authority}, or not for "
                        f"{LOOPBACK}, or expired; make it by `wardround certs` ({error})"
                    ) from None
                if time.monotonic() > deadline:
                    reason = last_line(processes.log_tail("superlink"))
                    raise WardroundError(f"the SuperLink does not answer: {reason}") from None
                time.sleep(0.2)

    def _tls(self, certificate: str, key: str, authority: str) -> list[str]:
        if self.insecure:
            return []
        federation = self.config.federation
        return [
            *(certificate, str(federation.certificate)),
            *(key, str(federation.certificate_key)),
            *(authority, str(federation.root_certificates)),
        ]


def _ask_outcome(control: SuperLinkControl, run: int) -> str | None:
    """The run's outcome; None too where a busy SuperLink does not answer this time. One that has ended is noticed."""
    try:
        return control.outcome(run)
    except OSError:
        return None
