"""`wardround profiles show`: what a run's rule remembers of its clients. Light to import."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.options import AsJson
from wardround.cli.plugins import PluginOption, load_plugins
from wardround.errors import ConfigError
from wardround.files import append_text

__all__ = ["mount", "profiles_app"]

profiles_app = typer.Typer(help="Show what a rule remembers of clients.", no_args_is_help=True)

ACCESS_LOG = "access.jsonl"


def mount(app: typer.Typer) -> None:
    """Add this group to the command line."""
    app.add_typer(profiles_app, name="profiles")


@profiles_app.command("show")
def show_profiles(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    reason: Annotated[str, typer.Option("--reason", help="Why you look; goes into the log.")],
    plugin: PluginOption = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run's rule remembers of each client. The access is logged in the run's folder first."""
    load_plugins(plugin)
    from wardround.runs.folder import RunFolder
    from wardround.runs.rule import restore_rule

    rule = restore_rule(RunFolder(run))
    table = rule.profile_table()
    if table is None:
        raise ConfigError(f"{run}: no profiles in it, aggregator '{rule.name}' keeps none")
    if not reason.strip():
        raise ConfigError("--reason: say why you look at the profiles")
    _log_access(run, reason)
    if as_json:
        print(json.dumps(table))
        return
    if not table:
        print("no profiles yet: no round is finished")
        return
    columns = list(dict.fromkeys(column for values in table.values() for column in values))
    width = max(len(name) for name in ("client", *table))
    widths = {column: max(12, len(column) + 1) for column in columns}
    print("client".ljust(width), *(column.rjust(widths[column]) for column in columns))
    for client, values in table.items():
        cells = (f"{values[column]:{widths[column]}.4g}" for column in columns)
        print(client.ljust(width), *cells)


def _log_access(run: Path, reason: str) -> None:
    from wardround.runs.quarantine import user_name

    line = {
        "time": time.time(),
        "user": user_name(),
        "process": os.getpid(),
        "command": " ".join(sys.argv[1:]),
        "what": "profiles",
        "reason": reason,
    }
    try:
        append_text(run / ACCESS_LOG, json.dumps(line) + "\n")
    except OSError as error:
        raise ConfigError(
            f"{run / ACCESS_LOG}: cannot be written ({error.strerror}), and profiles are not shown unlogged"
        ) from None
