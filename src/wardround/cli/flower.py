"""`wardround certs`, `serve`, `join`, `flower init`, `audit verify`, `quarantine`, `release`. Light to import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError

__all__ = ["audit_app", "flower_app", "mount"]

flower_app = typer.Typer(help="Flower's own tools with these rules.", no_args_is_help=True)
audit_app = typer.Typer(help="A federation's audit log.", no_args_is_help=True)

Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS, no keys: for trials on one machine.")]
Print = Annotated[bool, typer.Option("--print", help="Only print the commands that would be started.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Run = Annotated[Path, typer.Argument(help="A federation's run folder.")]
Client = Annotated[str, typer.Argument(help="As it is called in the run's tables.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; goes into the audit log.")]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (serve, join, certs, quarantine, release):
        app.command()(command)
    app.add_typer(audit_app, name="audit")
    app.add_typer(flower_app, name="flower")


def serve(
    config: Annotated[Path, typer.Option("--config", help="fed.yaml")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs.")] = Path("runs"),
    insecure: Insecure = False,
    print_only: Print = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation's server; started again after whatever stopped it, it goes on at the next round."""
    from wardround.flower.server.serve import Server

    server = Server.load(config, out, insecure)
    if print_only:
        print(server.printed())
        return
    if insecure:
        _warn()
    summary = server.serve(_say if not as_json else _whisper)
    if as_json:
        print(json.dumps({"folder": str(server.folder.path), **summary}))
        return
    final = summary.get("final") or {}
    measures = [
        f"{name} {value:.3f}" for name, value in final.items() if name != "round" and value is not None
    ]
    reason = f" ({summary['reason']})" if summary.get("reason") else ""
    print(f"{summary['status']} after {summary['rounds']} rounds{reason}: {', '.join(measures)}")
    print(server.folder.path)


def join(
    config: Annotated[Path, typer.Option("--config", help="hospital.yaml")],
    insecure: Insecure = False,
    print_only: Print = False,
) -> None:
    """Take part in a federation with this hospital's data, until stopped. The data stays here."""
    from wardround.flower.hospital.join import Joiner

    joiner = Joiner.load(config, insecure)
    if print_only:
        print(joiner.printed())
        return
    if insecure:
        _warn()
    joiner.join(_say)


def certs(
    folder: Annotated[Path, typer.Argument(help="Where the keys are, or will be.")] = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or IP address that hospitals reach the server by; repeat it."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="A hospital that needs a key; repeat it.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long the server's certificate is good.")
    ] = 825,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is there (never the authority).")
    ] = False,
) -> None:
    """Make the federation's authority, the server's certificate (--host) and hospitals' keys (--node)."""
    from wardround.flower.certificates import make_node_keys, make_server_certificate

    if not host and not node:
        raise ConfigError("certs: give --host NAME (for the server), --node NAME (for a hospital), or both")
    written = make_server_certificate(folder, host, days, force) if host else []
    written += make_node_keys(folder, node, force) if node else []
    for path in written:
        print(path)


def quarantine(run: Run, client: Client, reason: Reason) -> None:
    """Give a client weight 0 from the next round on, until it is released. Works while the federation runs."""
    from wardround.runs import quarantine as room

    room.quarantine(run, client, reason)
    print(f"{client} is quarantined from the next round on")


def release(run: Run, client: Client, reason: Reason) -> None:
    """Let a quarantined client take part again from the next round on."""
    from wardround.runs import quarantine as room

    room.release(run, client, reason)
    print(f"{client} is released from the next round on")


@audit_app.command("verify")
def verify_audit(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its audit.jsonl.")],
    head: Annotated[
        str | None, typer.Option("--head", help="A hash noted earlier: the log must still hold its line.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of an audit log was changed, removed, added or moved."""
    from wardround.runs.audit import head_of, verify
    from wardround.runs.quarantine import AUDIT_LOG

    path = path / AUDIT_LOG if path.is_dir() else path
    lines, last = verify(path, head), head_of(path)
    if as_json:
        print(json.dumps({"path": str(path), "lines": lines, "head": last}))
        return
    print(f"{path}: {lines} lines, whole")
    print(f"head: {last}")


@audit_app.callback()
def audit() -> None:
    """A federation's audit log."""


@flower_app.command("init")
def init_app(
    folder: Annotated[Path, typer.Argument(help="Made where it is not there.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="A fed.yaml of yours; none: a small example is written.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a plain Flower app folder for `flwr run`."""
    from wardround.flower.scaffold import write_app

    if config is not None:
        from wardround.flower.config import load_federation

        load_federation(config)
    written = write_app(folder, force, config)
    print(
        f"{written}: a Flower app; run it by: flwr run {written} local --federation-config num-supernodes=4"
    )


@flower_app.callback()
def flower() -> None:
    """Flower's own tools with these rules."""


def _say(line: str) -> None:
    print(line, flush=True)


def _whisper(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _warn() -> None:
    from wardround.flower.server.serve import SAY

    print(f"wardround: {SAY}", file=sys.stderr, flush=True)
