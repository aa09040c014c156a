"""The option `--plugin` of commands that name members: files and modules of the user's own. Light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["PluginOption", "add_plugins", "load_plugins"]

PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py|MODULE",
        help="Members of your own; may be given more than once. `plugins` in a configuration does the same.",
    ),
]


def load_plugins(entries: list[str] | None) -> None:
    """Load plug-ins for a command that has no configuration."""
    add_plugins({}, entries)


def add_plugins(values: dict[str, Any], entries: list[str] | None) -> dict[str, Any]:
    """A configuration with the plug-ins of the command line (seen from this folder) after its own, all loaded."""
    from wardround import plugins

    own = values.get(plugins.KEY)
    more = plugins.anchored({plugins.KEY: list(entries or ())}, Path.cwd())[plugins.KEY]
    loaded = [*plugins.load_all(own), *plugins.load_all(more)]
    if not loaded:
        return values
    return {**values, plugins.KEY: [plugin.model_dump() for plugin in dict.fromkeys(loaded)]}
