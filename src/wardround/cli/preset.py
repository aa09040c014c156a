"""`wardround preset show` and `preset copy`: the matrices that come with wardround, to read and to edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError

__all__ = ["mount"]

preset_app = typer.Typer(help="Show and copy the matrices that are built in.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="`wardround list presets`")]


def mount(app: typer.Typer) -> None:
    """Add this command group to the command line."""
    app.add_typer(preset_app, name="preset")


@preset_app.command("show")
def show(name: Name) -> None:
    """Print a preset: the YAML of its matrix."""
    from wardround.experiments import presets

    typer.echo(presets.text(name), nl=False)


@preset_app.command("copy")
def copy(name: Name, file: Annotated[Path, typer.Argument(help="Where to write it.")]) -> None:
    """Write a preset to a file, to edit it. A file that is there already is left as it is."""
    from wardround.experiments import presets

    content = presets.text(name)
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(content)
    except FileExistsError:
        raise ConfigError(f"{file}: is there already; give another name") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror})") from None
    typer.echo(f"{file}: run it by `wardround matrix {file}`")
