"""`wardround serve`: a SuperLink on loopback, a gateway in front of it and our server app on it."""

from __future__ import annotations

import json
import os
import shlex
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import ConfigError, WardroundError, require
from wardround.flower import OFFLINE
from wardround.flower.certificates import public_keys
from wardround.flower.config import FederationConfig, load_federation
from wardround.flower.processes import (
    Processes,
    check_port,
    console_script,
    free_port,
    last_line,
    one_at_a_time,
)
from wardround.flower.scaffold import write_app
from wardround.flower.server.delivery import is_delivery_pending
from wardround.records import LeftOut, RoundRecord, Summary
from wardround.runs.extension import extend
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import AUDIT_LOG

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from wardround.flower.server.superlink import SuperLinkControl

__all__ = ["INSECURE_WARNING", "Server", "child_environment", "readable_file"]

INSECURE_WARNING = (
    "INSECURE: no TLS and no keys. Whoever reaches this port can join, and read and change all that is sent."
)
LOOPBACK = "127.0.0.1"
START_SECONDS = 180.0
"""Time that the parts have to start."""
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
        """Read `fed.yaml` and check everything that can be wrong before anything is started."""
        require("flwr", "flower")
        load_federation(path)  # an error names the path as it was given
        path = path.resolve()
        server = cls(path, load_federation(path), out.resolve(), insecure)
        if not insecure:
            for key in ("certificate", "certificate_key", "root_certificates"):
                readable_file(getattr(server.config.federation, key), f"{path}: federation.{key}")
            server.keys()
        return server

    @cached_property
    def folder(self) -> RunFolder:
        """The run folder."""
        return self.config.find_folder(self.out)

    @property
    def state(self) -> Path:
        """Where the SuperLink keeps its database and logs."""
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
        return [
            console_script("flower-superlink"),
            *(["--insecure"] if self.insecure else [*tls, "--enable-supernode-auth"]),
            *("--host", LOOPBACK, "--port", str(port), "--database", str(self.state / "superlink.db")),
            "--disable-runtime-dependency-installation",
        ]

    def gateway(self, port: int) -> list[str]:
        """Return the command that starts the gateway; `port` is the SuperLink's."""
        federation = self.config.federation
        tls = self._tls("--certificate", "--certificate-key", "--root-certificates")
        keys = [] if self.insecure else ["--node-keys", str(federation.node_keys)]
        scheme = "http" if self.insecure else "https"
        return [
            *(sys.executable, "-m", "wardround.flower.server.gateway"),
            *("--host", federation.host, "--port", str(federation.port)),
            *("--to", f"{scheme}://{LOOPBACK}:{port}", *tls, *keys),
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
            f"mkdir -p {shlex.quote(str(home))}",
            f"cat > {shlex.quote(str(home / 'config.toml'))} <<'EOF'\n{connection}EOF",
            f"{shlex.join(self.superlink(port))} &",
            f"{shlex.join(self.gateway(port))} &",
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
        with one_at_a_time(self.state, "this federation"):
            check_port(federation.host, federation.port, f"{self.path}: federation.port")
            environment = child_environment(self.state / "flwr")
            with Processes(self.state, environment) as processes:
                port = free_port()
                processes.start("superlink", self.superlink(port))
                self._wait_until_healthy(port, processes)
                control = self._control(port)
                try:
                    control.stop_stale_runs()
                    if (keys := self.keys()) is not None:
                        control.register_only(keys)
                    processes.start("gateway", self.gateway(port))
                    self._wait_for_folder_lock(processes)
                    run = control.start_run(write_app(self.state / "app", force=True), self.run_options())
                    secure = "without TLS" if self.insecure else "TLS, registered keys only"
                    echo(f"serving on {federation.host}:{federation.port} ({secure}); logs in {self.state}")
                    return self._watch(processes, control, run, echo)
                finally:
                    control.close()

    def _watch(self, processes: Processes, control: SuperLinkControl, run: int, echo: Echo) -> Summary:
        last_round = max((record.round for record in self.folder.rounds()), default=0)
        events = AuditFollower(self.folder.path / AUDIT_LOG)
        before = self._summary_time()
        echo(
            f"waiting for {self.config.clients} hospitals; {last_round} of {self.config.run.rounds} rounds done"
        )
        asked, outcome = time.monotonic(), None
        while outcome is None:
            time.sleep(TICK)
            processes.check()
            if self._summary_time() not in (0.0, before) or time.monotonic() - asked > OUTCOME_POLL_SECONDS:
                asked, outcome = time.monotonic(), control.outcome(run)
            for text in events.new_lines():
                echo(text)
            for record in self.folder.rounds():
                if record.round > last_round:
                    echo(format_round(record, self.config.run.rounds))
                    last_round = record.round
        summary = self.folder.summary() if self._summary_time() not in (0.0, before) else None
        if summary is None or outcome:
            reason = (summary.reason if summary else None) or outcome or "it left no summary"
            raise WardroundError(f"the run failed: {reason} ({processes.log('superlink')})")
        return summary

    def _summary_time(self) -> float:
        """When the summary was last written. A change means that the run has probably ended."""
        path = self.folder.summary_path
        return path.stat().st_mtime if path.exists() else 0.0

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


class AuditFollower:
    """Follows an audit log and puts its events into words: who joined, who was refused, what is awaited."""

    TEMPLATES = {
        "joined": "{client} joined ({samples} samples)",
        "refused": "refused: {client}: {reason}",
        "not-introduced": "a hospital did not say who it is: {reason}",
        "quorum-missed": "too few hospitals: {reason}",
        "quarantined": "{client} is quarantined: {reason}",
        "released": "{client} is released: {reason}",
        "exported": "the model of round {round} is in the run folder",
        "not-exported": "no model was exported: {reason}",
        "delivered": "{client} has the model of round {round}",
        "not-delivered": "{client} has not got the model: {reason}; serve again when it is back",
        "log-rewritten": "the audit log was changed behind the server's back: line {missing_line} is gone",
    }

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        """Return one line for each event since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END) < self.offset:  # somebody cut it: what is there now was not shown
                self.offset = 0
            file.seek(self.offset)
            whole, end, _ = file.read().rpartition(b"\n")
        self.offset += len(whole) + len(end)
        return [text for line in whole.splitlines() if (text := self._format(line)) is not None]

    def _format(self, line: bytes) -> str | None:
        try:
            event = json.loads(line)
            return self.TEMPLATES[event["event"]].format(**event)
        except (
            ValueError,
            KeyError,
            TypeError,
        ):  # an event for programs, or half a line of a log that was cut
            return None


def format_round(record: RoundRecord, rounds: int) -> str:
    """Describe a finished round in one line.

    >>> format_round(RoundRecord(2, metrics={"auroc": 0.75}, left_out={"a": LeftOut("dropped", "NaN")}), 10)
    'round 2 of 10: AUROC 0.750; left out: a (NaN)'
    """
    parts = []
    auroc = (record.metrics or {}).get("auroc")
    if auroc is not None:
        parts.append(f"AUROC {auroc:.3f}")
    elif record.metrics and (why := record.details.reasons.get("auroc")) is not None:
        parts.append(f"no AUROC: {why.text}")
    if record.skipped:
        parts.append(f"skipped: {record.skipped}")
    if record.left_out:
        clients = (f"{client} ({_format_left_out(one)})" for client, one in record.left_out.items())
        parts.append("left out: " + ", ".join(clients))
    return f"round {record.round} of {rounds}" + (": " + "; ".join(parts) if parts else "")


def _format_left_out(left_out: LeftOut) -> str:
    quarantined = left_out.status == "quarantined"
    return f"quarantined: {left_out.reason}" if quarantined else left_out.reason


def child_environment(home: Path) -> dict[str, str]:
    """Return the environment of child processes: no telemetry, and Flower's files in `home`, not in the user's home."""
    programs = str(Path(sys.executable).parent)  # a SuperLink finds its helpers by PATH
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
    }


def readable_file(path: Path | None, key: str) -> Path:
    """Return `path` if it is given and can be read; raise a `ConfigError` that names `key` otherwise."""
    if path is None:
        raise ConfigError(f"{key} is required (make it by `wardround certs`), or use --insecure")
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error.strerror})") from None
