"""`wardround data list | info | prepare | check`. Light to import: torch and the rest come when a command runs."""

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
from wardround.errors import ConfigError, ParameterError

if TYPE_CHECKING:
    from wardround.datasets.base import DatasetSource
    from wardround.datasets.csv_table import CsvTable
    from wardround.datasets.prepared_cache import Progress

__all__ = ["data_app", "mount"]

data_app = typer.Typer(
    name="data",
    help="List and describe datasets; prepare raw files; check your own tables.",
    no_args_is_help=True,
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

    try:
        description = info(_source(name, options))
    except ParameterError:
        if options:
            raise
        # A dataset that must be told something (csv: which file?) can be described without it.
        description = info(registry.get(name))
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


@data_app.command("check")
def check_files(
    files: Annotated[
        list[Path],
        typer.Argument(help="Your table; several, or a folder: one per hospital; or the YAML file of a run."),
    ],
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    time: Annotated[str | None, typer.Option(help="Survival: the column with the time.")] = None,
    event: Annotated[str | None, typer.Option(help="Survival: the column with the event.")] = None,
    client: Annotated[str | None, typer.Option(help="The column that names the hospital.")] = None,
    patient: Annotated[str | None, typer.Option(help="The column that names the patient.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="A column of words or codes; may be given often.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column that is not used; may be given often.")
    ] = None,
    positive: Annotated[str | None, typer.Option(help="Of two labels the one to predict.")] = None,
    missing: Annotated[list[str] | None, typer.Option(help="A word for a gap; may be given often.")] = None,
    separator: Annotated[str | None, typer.Option(help="Between cells; found if not given.")] = None,
    decimal: Annotated[str | None, typer.Option(help="The decimal sign; found if not given.")] = None,
    encoding: Annotated[str | None, typer.Option(help="utf-8, latin-1, …; found if not given.")] = None,
    schema: Annotated[Path | None, typer.Option(help="A schema; see `wardround schema infer`.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split into training and test rows.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write a self-contained HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a table holds and what is wrong with it; exit code 1 where a run could not use it."""
    from wardround.datasets.table_check import check_table
    from wardround.datasets.table_check_text import in_full

    given = {
        "label": label, "time": time, "event": event, "client": client, "patient": patient,
        "categorical": categorical, "drop": drop,
        "positive": positive, "missing": missing, "separator": separator, "decimal": decimal, "encoding": encoding,
        "schema": schema,
    }  # fmt: skip
    options = {key: value for key, value in given.items() if value}
    table, least = _table(files, options)
    check = check_table(table, seed, **least)
    if as_json:
        typer.echo(json.dumps(check.plain(), indent=1, ensure_ascii=False))
    else:
        typer.echo(in_full(check))
    if out is not None:
        from wardround.report.check_page import write_check

        typer.echo(f"page: {write_check(check, out)}", err=as_json)
    if check.of("error"):
        raise typer.Exit(1)


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t"}
"""What people write for a separator that is hard to type."""


def _table(files: list[Path], options: dict[str, Any]) -> tuple[CsvTable, dict[str, int]]:
    """The `csv` dataset of these files or of a run's configuration, and the smallest hospital that the run takes."""
    from wardround.datasets.csv_table import CsvTable
    from wardround.runs.config import read_yaml

    least: dict[str, int] = {}
    if "separator" in options:
        options["separator"] = SEPARATORS.get(options["separator"], options["separator"])
    files = [file for path in files for file in (_tables_in(path) if path.is_dir() else [path])]
    if len(files) == 1 and files[0].suffix in (".yaml", ".yml"):
        values = read_yaml(files[0])
        section, partition = values.get("dataset"), values.get("partition")
        if not isinstance(section, Mapping) or section.get("name") != CsvTable.name:
            raise ConfigError(f"{files[0]}: its dataset is no csv table, and needs no check")
        options = {**{key: value for key, value in section.items() if key != "name"}, **options}
        if isinstance(partition, Mapping) and isinstance(partition.get("min_size"), int):
            least["min_size"] = partition["min_size"]
    elif len(files) == 1:
        options["file"] = files[0]
    else:
        options["files"] = _by_hospital(files)
    table = _created(CsvTable.name, options)
    assert isinstance(table, CsvTable)
    return table, least


def _tables_in(folder: Path) -> list[Path]:
    tables = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz"), *folder.glob("*.tsv")])
    if not tables:
        raise ConfigError(f"{folder}: no .csv, .csv.gz or .tsv file in it")
    return tables


def _by_hospital(files: list[Path]) -> dict[str, Path]:
    """Each file under its own name, with its folder's where two are called the same."""
    stems = [file.name.partition(".")[0] for file in files]
    names = [
        stem if stems.count(stem) == 1 else f"{file.absolute().parent.name}/{stem}"
        for file, stem in zip(files, stems, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ConfigError("two of these files have the same name and folder name: rename one")
    return dict(zip(names, files, strict=True))


def _created(name: str, options: dict[str, Any]) -> DatasetSource:
    from wardround import datasets

    return datasets.create(name, **options)


def _source(name: str, options: list[str] | None) -> DatasetSource:
    """The dataset with these options, each `key=value`."""
    import yaml

    given: dict[str, Any] = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{option}': an option is written key=value, for example size=64")
        try:
            given[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"'{option}': the value is not valid YAML") from None
    return _created(name, given)


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
