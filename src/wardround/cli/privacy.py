"""`wardround steward`, `wardround privacy explain`, `wardround profiles show`. Light to import."""

from __future__ import annotations

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError
from wardround.files import append_text

__all__ = ["mount", "privacy_app", "profiles_app", "steward"]

privacy_app = typer.Typer(help="What the privacy modes protect, and from whom.", no_args_is_help=True)
profiles_app = typer.Typer(help="What a rule remembers of clients.", no_args_is_help=True)

ACCESS_LOG = "access.jsonl"


class ModeName(StrEnum):
    """What a steward's keys are for."""

    FEDMED = "encrypted-fedmed"
    CAAC = "encrypted-caac"


class CipherName(StrEnum):
    """Which keys a steward makes."""

    CKKS = "ckks"
    PAILLIER = "paillier"


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command("steward")(steward)
    app.add_typer(privacy_app, name="privacy")
    app.add_typer(profiles_app, name="profiles")


def steward(
    folder: Annotated[Path, typer.Argument(help="Where its keys, sessions and log are.")],
    clients: Annotated[
        str | None,
        typer.Option(help="Makes the folder: ids with commas between, or how many (hospital-00, …)."),
    ] = None,
    mode: Annotated[ModeName, typer.Option(help="When the folder is made.")] = ModeName.FEDMED,
    cipher: Annotated[CipherName, typer.Option(help="When the folder is made.")] = CipherName.CKKS,
    min_cohort: Annotated[int, typer.Option(min=2, help="Fewest clients in an opened sum.")] = 3,
    max_share: Annotated[float, typer.Option(help="Largest share of one client in it.")] = 0.5,
    profile_epsilon: Annotated[
        float | None, typer.Option(help="Noise on norms and cosines: ε a client and round.")
    ] = None,
    profile_clip: Annotated[float, typer.Option(help="Largest norm that is told, with that noise.")] = 1.0,
    host: Annotated[str, typer.Option(help="Other than loopback needs --certificate.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8471,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
) -> None:
    """Hold the secret key of an encrypted federation; open sums and scalars by a policy; log every opening."""
    from pydantic import ValidationError

    from wardround.privacy.encryption.steward import Policy
    from wardround.privacy.encryption.steward_service import StewardService
    from wardround.privacy.encryption.vault import Vault, server_key
    from wardround.privacy.params import ProfileNoiseParams
    from wardround.registry import explain

    vault = Vault(folder)
    if clients is not None:
        try:
            policy = Policy(min_cohort=min_cohort, max_share=max_share)
            noise = (
                None
                if profile_epsilon is None
                else ProfileNoiseParams(epsilon=profile_epsilon, clip=profile_clip)
            )
        except ValidationError as error:
            raise ConfigError(f"steward: {explain(error, Policy)}") from None
        vault.make(_ids(clients), mode.value, cipher.value, policy, noise)
    service = StewardService(
        vault.steward(), server_key(vault.keys), host, port, certificate, certificate_key
    )
    print(f"steward: {service.address}, keys for the server and clients in {vault.keys}", flush=True)
    print(f"steward: openings are logged in {vault.log_path}", flush=True)
    with service:
        service.serve_forever()


@privacy_app.command("explain")
def explain_command(
    mode: Annotated[str, typer.Argument(help="plaintext, encrypted-fedmed, encrypted-caac")],
) -> None:
    """Who sees what in a mode, and whom one has to trust."""
    from wardround.privacy.explain import explain_mode

    print(explain_mode(mode))


@profiles_app.command("show")
def show_profiles(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    reason: Annotated[str, typer.Option("--reason", help="Why you look; goes into the log.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what a run's rule remembers of each client. The access is logged in the run's folder first."""
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


def _ids(clients: str) -> list[str]:
    if clients.isdigit():
        digits = max(2, len(str(int(clients) - 1)))
        return [f"hospital-{i:0{digits}d}" for i in range(int(clients))]
    return [client.strip() for client in clients.split(",") if client.strip()]
