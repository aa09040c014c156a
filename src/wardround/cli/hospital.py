"""`wardround hospital log`, `ledger` and `alive`: what a hospital keeps for itself.

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["mount"]

hospital_app = typer.Typer(
    help="What left this hospital, and what privacy it has spent.", no_args_is_help=True
)

Config = Annotated[Path, typer.Argument(help="The hospital's configuration, hospital.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.add_typer(hospital_app, name="hospital")


@hospital_app.command("log")
def log(config: Config, as_json: AsJson = False) -> None:
    """Print what left this hospital and what it refused, one line per order."""
    from wardround.flower.hospital.join import Joiner
    from wardround.flower.hospital.memory import read_log

    lines = read_log(Joiner.load(config, insecure=True).state)
    if as_json:
        print(json.dumps(lines))
        return
    for line in lines:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["time"]))
        what = (
            f"refused: {line['refused']}"
            if "refused" in line
            else f"{line['bytes']} bytes {line['sha256'][:16]}"
        )
        if "manifest" in line:
            what = _describe_model(line)
        again = " (the same again)" if line.get("repeated") else ""
        print(f"{when}  {line['kind']:<9} round {line.get('round', '-')}  {what}{again}")
    if not lines:
        print("nothing has left this hospital")


def _describe_model(line: dict[str, Any]) -> str:
    """What the log says of a finished model that was brought."""
    signed = f"signed by {line['signed_by']}" if line.get("signed_by") else "not signed, or not checked"
    shown = "as its orders showed it" if line.get("shown") else "which no order had shown"
    where = f"stored in {line['folder']}" if "folder" in line else "not stored"
    return f"finished model, {signed}, {shown}; {where}"


@hospital_app.command("ledger")
def ledger(config: Config, as_json: AsJson = False) -> None:
    """Print the differential privacy that this hospital has spent, over all runs."""
    from wardround.flower.config import load_hospital
    from wardround.flower.hospital.hospital import read_memory
    from wardround.flower.hospital.join import Joiner

    loaded = load_hospital(config)
    memory = read_memory(Joiner.load(config, insecure=True).state / "memory", loaded.policy)
    spent = memory.ledger.epsilon()
    answer = {
        "epsilon": spent,
        "delta": memory.ledger.delta,
        "budget": memory.ledger.budget,
        "rounds": {run: round for run, (round, _) in memory.answered.items()},
    }
    if as_json:
        print(json.dumps(answer))
        return
    budget = "no budget" if memory.ledger.budget is None else f"of {memory.ledger.budget:g}"
    print(f"ε = {spent:.3f} {budget} (δ = {memory.ledger.delta:g}), over all runs")
    for run, (round, _) in memory.answered.items():
        print(f"answered up to round {round}: {run}")


@hospital_app.command("alive")
def alive(config: Config) -> None:
    """Exit with 0 if this hospital has joined on this machine, else with 1: a health check for service managers."""
    from wardround.files import is_locked
    from wardround.flower.hospital.join import Joiner

    joiner = Joiner.read(config, insecure=True)
    joined = is_locked(joiner.state / ".lock")
    print(f"{joiner.config.name} {'has joined' if joined else 'is not running'}")
    if not joined:
        raise typer.Exit(1)


@hospital_app.callback()
def hospital() -> None:
    """What left this hospital, and what privacy it has spent."""
