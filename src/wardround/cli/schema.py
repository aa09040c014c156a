"""`wardround schema infer | check`. Light to import: numpy and the rest come when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError

__all__ = ["mount", "schema_app"]

schema_app = typer.Typer(
    name="schema", help="Write and check schemas: what the columns of tables mean.", no_args_is_help=True
)

Files = Annotated[list[Path], typer.Argument(help="Tables: .csv or .csv.gz files with a header.")]


def mount(app: typer.Typer) -> None:
    """Add this group to the command line."""
    app.add_typer(schema_app, name="schema")


@schema_app.command("infer")
def infer(
    files: Files,
    label: Annotated[
        str | None, typer.Option("--label", help="The column to predict; of a survival task give --event.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Survival: the column with the time to event or censoring.")
    ] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="Survival: the column that says whether the event happened.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; else it is printed.")] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", help="A column of codes or words; may be given often."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="A column that is not used; may be given often.")
    ] = None,
    patient: Annotated[
        str | None, typer.Option("--patient", help="The column that names the patient.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="The column that names the hospital.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A column with patient groups; may be given often.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option("--positive", help="Of two classes the one to predict.")
    ] = None,
) -> None:
    """Write a first schema for tables; read it, edit it, and give it to the server or a simulation."""
    from wardround.datasets.schema_inference import infer_schema

    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already; give another name with --out")
    answer = label if event is None else event
    if answer is None:
        raise ConfigError("schema infer: give --label, the column to predict (survival: --time and --event)")
    if (time is None) != (event is None) or (label is not None and event is not None):
        raise ConfigError("schema infer: give --label, or --time and --event")
    inferred = infer_schema(
        files,
        answer,
        categorical=categorical or (),
        drop=drop or (),
        patient=patient,
        client=client,
        groups=group or (),
        positive=positive,
        time=time,
    )
    text = inferred.schema.dump()
    for note in inferred.notes:
        typer.echo(f"note: {note}", err=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: {len(inferred.schema.columns)} columns; read it and edit it before others use it")


@schema_app.command("check")
def check(
    schema: Annotated[Path, typer.Argument(help="The schema.")],
    files: Files,
) -> None:
    """Check tables against a schema: every problem with its column, value and row, and what was expected."""
    from wardround.datasets.csv_files import read_table
    from wardround.datasets.schema import Schema
    from wardround.datasets.schema_check import SchemaMismatch, conform

    expected = Schema.load(schema)
    wrong = 0
    for path in files:
        columns = read_table(path, [])
        try:
            rows = conform(columns, expected, str(path)).targets
            typer.echo(f"{path}: fits ({0 if rows is None else len(rows)} rows)")
        except SchemaMismatch as mismatch:
            wrong += 1
            for problem in mismatch.problems:
                typer.echo(f"{path}: {problem}")
    if wrong:
        raise ConfigError(f"{wrong} of {len(files)} files do not fit {schema}")
