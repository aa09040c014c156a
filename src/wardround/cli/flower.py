"""`wardround certs`, `serve`, `join`, `flower init`, `audit verify`, `quarantine`, `release`.

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from wardround.cli.options import Resume
from wardround.errors import ConfigError

if TYPE_CHECKING:
    from wardround.flower.log import Log
    from wardround.runs.audit import ShownHead

__all__ = ["audit_app", "flower_app", "mount"]

flower_app = typer.Typer(help="Use wardround with Flower's own tools.", no_args_is_help=True)
audit_app = typer.Typer(help="Check the audit log of a run.", no_args_is_help=True)

Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no keys; only for trials on one machine.")
]
Print = Annotated[bool, typer.Option("--print", help="Print the commands instead of starting them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        envvar="WARDROUND_LOG_FORMAT",
        help="text, or json: one JSON object per line, for programs.",
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        envvar="WARDROUND_LOG_FILE",
        help="Write what is printed to this file, too; it is rotated at 10 MB, and five older ones are kept.",
    ),
]
Run = Annotated[Path, typer.Argument(help="Folder of an unfinished run, simulated or federated.")]
Client = Annotated[str, typer.Argument(help="Name of the client in the run's records.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is written into the audit log.")]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (trial, serve, join, certs, quarantine, release):
        app.command()(command)
    app.add_typer(audit_app, name="audit")
    app.add_typer(flower_app, name="flower")


def trial(
    folder: Annotated[Path, typer.Argument(help="A new folder; every party gets a folder in it.")],
    hospital: Annotated[
        list[str] | None,
        typer.Option(
            "--hospital", help="Name of a hospital; can be repeated. Default: north, south, east, west."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    server: Annotated[
        str, typer.Option(help="Name or address by which hospitals reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65534, help="The metrics are at the next one.")] = 8000,
    listen: Annotated[str, typer.Option(help="Address that the server listens on.")] = "127.0.0.1",
    steward: Annotated[
        str | None, typer.Option(help="Encrypt updates, with a steward at this name or address.")
    ] = None,
) -> None:
    """Write a federation to try out: server, hospitals with tables of their own, keys, and a steward if wanted."""
    from wardround.flower.trial import NAMES, Trial

    written = Trial(folder, tuple(hospital or NAMES), rounds, server, port, listen, steward)
    for path in written.write():
        print(path)


def serve(
    config: Annotated[Path, typer.Option("--config", help="The server's configuration, fed.yaml.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the runs.")] = Path("runs"),
    resume: Resume = None,
    insecure: Insecure = False,
    print_only: Print = False,
    as_json: AsJson = False,
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> None:
    """Run the server of a federation. Run the same command again to resume it at the next round."""
    from wardround.flower.server.serve import Server

    server = Server.load(config, out, insecure)
    if print_only:
        print(server.shell_script())
        return
    if insecure:
        _warn_insecure()
    if resume is not None:
        server.extend(resume)
    log = _log("serve", log_format, log_file, sys.stderr if as_json else None)
    server.preflight(log)
    summary = server.serve(log)
    if as_json:
        print(json.dumps({"folder": str(server.folder.path), **summary.plain()}))
        return
    final = summary.final or {}
    measures = [
        f"{name} {value:.3f}" for name, value in final.items() if name != "round" and value is not None
    ]
    reason = f" ({summary.reason})" if summary.reason else ""
    print(f"{summary.status} after {summary.rounds} rounds{reason}: {', '.join(measures)}")
    print(server.folder.path)


def join(
    config: Annotated[Path, typer.Option("--config", help="The hospital's configuration, hospital.yaml.")],
    insecure: Insecure = False,
    print_only: Print = False,
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> None:
    """Take part in a federation with this hospital's data until stopped. Updates leave the hospital, data do not."""
    from wardround.flower.hospital.join import Joiner

    joiner = Joiner.load(config, insecure)
    if print_only:
        print(joiner.shell_script())
        return
    if insecure:
        _warn_insecure()
    joiner.preflight(_log("join", log_format, log_file))
    joiner.join()


def certs(
    folder: Annotated[Path, typer.Argument(help="Folder of the keys; created if it is missing.")] = Path(
        "certs"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A host name or IP address of the server; can be repeated."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", help="Name of a hospital that needs a key; can be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the server's certificate.")] = 825,
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files (never the authority's).")
    ] = False,
) -> None:
    """Create a certificate authority, the server's certificate (--host) and hospitals' keys (--node)."""
    from wardround.flower.certificates import make_node_keys, make_server_certificate

    if not host and not node:
        raise ConfigError("certs: give --host NAME (for the server), --node NAME (for a hospital), or both")
    written = make_server_certificate(folder, host, days, force) if host else []
    written += make_node_keys(folder, node, force) if node else []
    for path in written:
        print(path)


def quarantine(run: Run, client: Client, reason: Reason) -> None:
    """Exclude a client from the next round on, until it is released. A finished run is refused."""
    from wardround.runs import quarantine as operations

    operations.quarantine(run, client, reason)
    print(f"{client} is quarantined from the next round on")


def release(run: Run, client: Client, reason: Reason) -> None:
    """Let a quarantined client take part again from the next round on. A finished run is refused."""
    from wardround.runs import quarantine as operations

    operations.release(run, client, reason)
    print(f"{client} is released from the next round on")


@audit_app.command("verify")
def verify_audit(
    path: Annotated[Path, typer.Argument(help="A run folder, or its audit.jsonl.")],
    head: Annotated[
        str | None,
        typer.Option("--head", help="A hash printed earlier; the log must still contain its line."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="A hospital's outgoing.jsonl; every line that the hospital was shown must still be there.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="With --against: the run, as the hospital's log calls it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the hash chain of an audit log; with --head or --against, also that nothing was cut off or rewritten."""
    from wardround.runs.audit import head_of, verify, verify_against
    from wardround.runs.quarantine import AUDIT_LOG

    path = path / AUDIT_LOG if path.is_dir() else path
    lines, last = verify(path, head), head_of(path)
    answer: dict[str, str | int] = {"path": str(path), "lines": lines, "head": last}
    if against is not None:
        heads = _shown_heads(against, run, path.resolve().parent.name)
        verify_against(path, heads)
        answer["shown"] = len(heads)
    if as_json:
        print(json.dumps(answer))
        return
    print(f"{path}: {lines} lines, whole")
    print(f"head: {last}")
    if against is not None:
        print(f"{against}: all {len(heads)} heads that the hospital was shown are in it")


def _shown_heads(log: Path, run: str | None, folder: str) -> list[ShownHead]:
    """What a hospital was shown of one run: the named one, the one of this folder, or the only one there is."""
    from wardround.runs.audit import read_shown_heads

    heads = read_shown_heads(log)
    if not heads:
        raise ConfigError(f"{log}: the hospital was shown no audit log yet")
    chosen = run or (f"run:{folder}" if f"run:{folder}" in heads or len(heads) > 1 else next(iter(heads)))
    if chosen not in heads:
        raise ConfigError(f"{log}: has no run {chosen}; say which one by --run: {', '.join(heads)}")
    return heads[chosen]


@audit_app.callback()
def audit() -> None:
    """Check the audit log of a run."""


@flower_app.command("init")
def init_app(
    folder: Annotated[Path, typer.Argument(help="Folder of the app; created if it is missing.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="Your fed.yaml; without it, a small example is written.")
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
    if shutil.which("flower-superlink") is None:
        activate = Path(sys.executable).with_name("activate")
        print(f"Flower looks for its programs on the PATH; first: source {activate}")


@flower_app.callback()
def flower() -> None:
    """Use wardround with Flower's own tools."""


def _log(program: str, log_format: str, file: Path | None, stream: TextIO | None = None) -> Log:
    """Where a command writes what it says. The environment hands it on to what the command starts."""
    from wardround.flower.log import FILE_VARIABLE, FORMAT_VARIABLE, FORMATS, Log

    if log_format not in FORMATS:
        raise ConfigError(f"--log-format: {log_format!r} is not known; it is one of {', '.join(FORMATS)}")
    os.environ[FORMAT_VARIABLE] = log_format
    if file is not None:
        os.environ[FILE_VARIABLE] = str(file.absolute())
    return Log(program, stream)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _warn_insecure() -> None:
    from wardround.flower.server.serve import INSECURE_WARNING

    _print_to_stderr(f"wardround: {INSECURE_WARNING}")
