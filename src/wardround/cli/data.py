"""`wardround data list | info | prepare`. Light to import: torch and the rest come when a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli.options import AsJson
from wardround.cli.plugins import PluginOption, load_plugins
from wardround.errors import ConfigError

if TYPE_CHECKING:
    from wardround.datasets.base import DatasetSource
    from wardround.datasets.prepared_cache import Progress

__all__ = ["data_app", "mount"]

data_app = typer.Typer(
    name="data", help="List and describe datasets; prepare raw files for fast loading.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The dataset's name; `wardround data list` shows all.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="The dataset's options, as in a config: size=64"),
]


def mount(app: typer.Typer) -> None:
    """Add this group to the command line."""
    app.add_typer(data_app, name="data")


@data_app.command("list")
def list_datasets(plugin: PluginOption = None, as_json: AsJson = False) -> None:
    """List all datasets with their task and a short description."""
    load_plugins(plugin)
    from wardround.datasets import registry
    from wardround.datasets.prepared_cache import PreparedSource

    rows = [
        {
            "name": name,
            "task": str(member.task),
            "summary": member.summary,
            "licence": member.licence,
            "needs_preparation": issubclass(member, PreparedSource) and member.takes_folder,
        }
        for name, member in ((name, registry.get(name)) for name in registry.available())
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "task", "prepare", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(
            str(row["name"]), str(row["task"]), "yes" if row["needs_preparation"] else "", str(row["summary"])
        )
    Console().print(table)


@data_app.command("info")
def show_info(
    name: Name, options: Options = None, plugin: PluginOption = None, as_json: AsJson = False
) -> None:
    """Describe a dataset: what it is, where it comes from, and what its preparation found."""
    load_plugins(plugin)
    from wardround.datasets import registry
    from wardround.datasets.prepared_cache import info

    member = registry.get(name)
    # A dataset with required parameters (csv: which file?) can be described without them.
    open_questions = any(field.is_required() for field in member.Params.model_fields.values())
    description = info(member if open_questions and not options else _source(name, options))
    if as_json:
        typer.echo(json.dumps(description, indent=1, ensure_ascii=False, default=str))
        return
    facts = description.pop("facts", {})
    _print_mapping(description, 0)
    if facts:
        typer.echo("facts:")
        _print_mapping(facts, 1)


@data_app.command("prepare")
def prepare_dataset(
    name: Name,
    options: Options = None,
    source: Annotated[Path | None, typer.Option(help="The folder with the raw files.")] = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Skip unreadable images.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes or threads; default: all cores.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Prepare again even if it is done.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Convert raw files into a cache that loads fast. An interrupted preparation resumes where it stopped."""
    load_plugins(plugin)
    from wardround.datasets.prepared_cache import prepare

    member = _source(name, options)
    with _progress() as progress:
        folder = prepare(
            member, source, skip_corrupt=skip_corrupt, progress=progress, workers=workers, force=force
        )
    typer.echo(f"prepared: {folder}")


def _source(name: str, options: list[str] | None) -> DatasetSource:
    """The dataset with these options, each `key=value`."""
    import yaml

    from wardround import datasets

    given: dict[str, Any] = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{option}': an option is written key=value, for example size=64")
        try:
            given[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"'{option}': the value is not valid YAML") from None
    return datasets.create(name, **given)


def _print_mapping(values: Mapping[str, Any], depth: int) -> None:
    indent = "  " * depth
    width = max((len(str(key)) for key in values), default=0) + 1
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            typer.echo(f"{indent}{key}:")
            _print_mapping(value, depth + 1)
        else:
            shown = "none" if value in (None, {}, "") else value
            typer.echo(f"{indent}{str(key) + ':':<{width}} {shown}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on a terminal; elsewhere one line per finished stage."""
    if not sys.stderr.isatty():
        finished: set[str] = set()

        def report(stage: str, done: int, total: int) -> None:
            if done >= total and stage not in finished:
                finished.add(stage)
                typer.echo(f"{stage}: done", err=True)

        yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield draw
