"""`wardround keys`: the hospitals that a federation lets in, which may change while it runs.

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError

__all__ = ["mount"]

keys_app = typer.Typer(
    help="Add, replace and revoke hospitals' keys; a server that runs obeys at once.", no_args_is_help=True
)
Config = Annotated[Path, typer.Argument(metavar="fed.yaml", help="The server's configuration.")]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.add_typer(keys_app, name="keys")


def _folder(config: Path) -> Path:
    from wardround.flower.config import load_federation

    folder = load_federation(config).federation.node_keys
    if folder is None:
        raise ConfigError(
            f"{config}: federation.node_keys is missing: the folder with the hospitals' public keys"
        )
    return folder


@keys_app.command("list")
def list_keys(
    config: Config, as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
) -> None:
    """List the hospitals that are let in, with the hash of each key file (as sha256sum prints it)."""
    from wardround.flower.server.key_folder import fingerprint

    files = sorted(_folder(config).glob("*.pub"))
    hashes = {file.stem: fingerprint(file) for file in files}
    if as_json:
        print(json.dumps(hashes))
        return
    for name, digest in hashes.items():
        print(f"{digest}  {name}")
    if not hashes:
        print("no hospital has a key here")


@keys_app.command("add")
def add(
    config: Config,
    key: Annotated[
        Path, typer.Argument(metavar="NAME.pub", help="The hospital's public key, as it sent it.")
    ],
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="In place of the key that it has: the old one is refused from then on."
        ),
    ] = False,
) -> None:
    """Let a hospital in. A server that runs obeys within seconds."""
    from wardround.flower.server.key_folder import add_key, fingerprint

    name = add_key(_folder(config), key, replace)
    print(f"{name} is let in from now on; compare by telephone: {fingerprint(key)}")


@keys_app.command("revoke")
def revoke(
    config: Config,
    name: Annotated[str, typer.Argument(help="The hospital, as `wardround keys list` calls it.")],
) -> None:
    """Keep a hospital out. A server that runs obeys within seconds; the key file is kept as NAME.revoked."""
    from wardround.flower.server.key_folder import revoke_key

    revoke_key(_folder(config), name)
    print(f"{name} is not let in from now on")


@keys_app.callback()
def keys() -> None:
    """Add, replace and revoke hospitals' keys; a server that runs obeys at once."""
