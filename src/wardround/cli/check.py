"""`wardround check`: is everything there that a federation needs, before it starts?

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.errors import ConfigError

if TYPE_CHECKING:
    from wardround.flower.preflight import Finding

__all__ = ["mount"]


def mount(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(check)


def check(
    config: Annotated[
        Path, typer.Argument(metavar="fed.yaml|hospital.yaml", help="Of a server or a hospital.")
    ],
    connect: Annotated[
        bool, typer.Option("--connect", help="Ask the other side, too: address, certificate, clock, key.")
    ] = False,
    schema: Annotated[
        Path | None, typer.Option("--schema", help="Of a hospital: check its table against this schema.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Of a server: folder of the runs.")] = Path("runs"),
    insecure: Annotated[bool, typer.Option("--insecure", help="As it will be started.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check keys, certificates, ports, clock, disk, data, memory and steward. Exit code 1: something will not work."""
    from wardround.runs.config import read_yaml

    is_server = "federation" in read_yaml(config)
    if is_server and schema is not None:
        raise ConfigError("--schema: is for a hospital; a server has federation.schema")
    findings = (
        _check_server(config, out, insecure, connect)
        if is_server
        else _check_hospital(config, schema, insecure, connect)
    )
    failed = any(finding.status == "failed" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [finding.plain() for finding in findings]}))
    else:
        _print(findings)
    if failed:
        raise typer.Exit(1)


def _check_server(path: Path, out: Path, insecure: bool, connect: bool) -> Sequence[Finding]:
    from wardround.flower.server.serve import Server

    return Server.read(path, out, insecure).check(connect)


def _check_hospital(path: Path, schema: Path | None, insecure: bool, connect: bool) -> Sequence[Finding]:
    from wardround.datasets.schema import Schema
    from wardround.flower.hospital.join import Joiner

    return Joiner.read(path, insecure).check(None if schema is None else Schema.load(schema), connect)


def _print(findings: Sequence[Finding]) -> None:
    from rich.table import Table

    from wardround.cli.console import console

    table = Table()
    for name in ("check", "", "what was found", "what to do"):
        table.add_column(name, overflow="fold")
    for one in findings:
        table.add_row(one.check, one.status, one.text, one.remedy)
    console.print(table)
    counts = {status: sum(one.status == status for one in findings) for status in ("failed", "warning")}
    warnings = f"; warnings: {counts['warning']}" if counts["warning"] else ""
    console.print(f"{counts['failed']} of {len(findings)} checks failed{warnings}")
