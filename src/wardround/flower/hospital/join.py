"""`wardround join`: reads `hospital.yaml`, checks it, and becomes the supervisor of a hospital's processes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wardround.datasets.schema import Schema
from wardround.errors import ConfigError, require
from wardround.flower import OFFLINE
from wardround.flower.certificates import readable_file
from wardround.flower.config import HospitalConfig, load_hospital
from wardround.flower.hospital.supervisor import Plan, become_supervisor
from wardround.flower.preflight.findings import Finding, report

__all__ = ["Joiner"]

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Joiner:
    """One hospital, as `hospital.yaml` describes it."""

    path: Path
    config: HospitalConfig
    insecure: bool = False

    @classmethod
    def load(cls, path: Path, insecure: bool = False) -> Joiner:
        """Read `hospital.yaml` and check the files that it names."""
        joiner = cls.read(path, insecure)
        path = joiner.path
        joiner.server()
        if not insecure:
            readable_file(joiner.config.root_certificates, f"{path}: root_certificates")
            key = readable_file(joiner.config.node_key, f"{path}: node_key")
            if key.stat().st_mode & 0o077:
                raise ConfigError(
                    f"{key}: others may read this private key; run: chmod 600 {shlex.quote(str(key))}"
                )
        return joiner

    @classmethod
    def read(cls, path: Path, insecure: bool = False) -> Joiner:
        """Read `hospital.yaml`."""
        require("flwr", "flower")
        load_hospital(path)  # an error names the path as it was given
        path = path.resolve()
        return cls(path, load_hospital(path), insecure)

    def check(
        self, schema: Schema | None = None, connect: bool = False, with_data: bool = True
    ) -> list[Finding]:
        """What can be known before it joins; with `connect` also against its server (see `check_hospital`)."""
        from wardround.flower.preflight.hospital import check_hospital

        state = self.state
        return check_hospital(self.config, self.path, state, self.insecure, schema, connect, with_data)

    def preflight(self, echo: Echo) -> None:
        """Say what somebody should know before it joins; raise what would keep it from working.

        Large data are left to the trainer, which reads them anyway.
        """
        report(self.check(with_data=False), echo)

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

    def plan(self) -> Plan:
        """What the supervisor has to know."""
        config = self.config
        host, port = self.server()
        unused = "runtime_port is not needed any more: remove it from hospital.yaml"
        notices = () if config.runtime_port is None else (unused,)
        return Plan(
            config.name,
            str(self.path),
            str(self.state),
            host,
            port,
            None if self.insecure else str(config.root_certificates),
            None if self.insecure else str(config.node_key),
            tuple(config.policy.describe()),
            notices,
        )

    def shell_script(self) -> str:
        """Return the commands for those who want to start the parts themselves."""
        plan, socket_path = self.plan(), self.state / "trainer"
        exports = {**OFFLINE, "FLWR_HOME": str(self.state / "flwr")}
        lines = [f"export {key}={shlex.quote(value)}" for key, value in sorted(exports.items())]
        lines += [
            f"(umask 077; mkdir -p {shlex.quote(str(self.state))})",
            f"{shlex.join(plan.trainer(socket_path))} &",
            f"{shlex.join(plan.supernode(socket_path))} &",
        ]
        return "\n".join(lines)

    def join(self) -> None:
        """Take part until interrupted. Does not return: this process becomes the supervisor."""
        become_supervisor(self.plan())
