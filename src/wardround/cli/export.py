"""`wardround export` and `wardround predict`: a run's model as a folder, and what it says of a table.

Imports of other modules are inside the functions, so that the command line starts fast.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli.options import AsJson
from wardround.cli.plugins import PluginOption
from wardround.errors import ConfigError, DataError

if TYPE_CHECKING:
    from wardround.runs.export.exported import Predictions

__all__ = ["export", "mount", "predict"]


class Round(StrEnum):
    """Which round's weights are exported."""

    BEST = "best"
    LAST = "last"


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (export, predict):
        app.command()(command)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, simulated or federated.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the model.")] = Path("model"),
    round: Annotated[
        Round | None,
        typer.Option(
            "--round",
            help="best: by AUROC (or C-index) on validation samples; last. Default: best, where the run kept it.",
        ),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx/--no-onnx", help="Write model.onnx too.")] = True,
    key: Annotated[
        Path | None, typer.Option("--key", help="Sign with this private key (the server's server.key).")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="The certificate of --key (server.pem).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there already.")] = False,
    plugin: PluginOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of a run as a folder: weights, ONNX, preprocessing, schema, manifest and MODEL_CARD.md."""
    from wardround import plugins
    from wardround.runs.export.writer import SigningKey, export_run
    from wardround.runs.folder import RunFolder

    if (key is None) != (certificate is None):
        raise ConfigError("export: --key and --certificate belong together: give both or neither")
    signing_key = None if key is None or certificate is None else SigningKey(key, certificate)
    plugins.load_all(plugin)
    folder = RunFolder(run)
    plugins.load_all(folder.config().get(plugins.KEY))
    manifest = export_run(folder, out, None if round is None else round.value, onnx, signing_key, force)
    if as_json:
        print(json.dumps({"folder": str(out), **json.loads(manifest.to_bytes())}))
        return
    chosen = "best on validation" if manifest.chosen == "best" else "the last one"
    print(f"round {manifest.round} ({chosen}), {manifest.parameters:,} parameters")
    print(out)


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv", help="A table with the model's raw columns.")],
    out: Annotated[Path | None, typer.Option("--out", help="CSV file; without it, it is printed.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="A column of the table to copy beside the prediction; can be repeated."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option("--authority", help="Refuse a model that no server of this ca.crt has signed."),
    ] = None,
    plugin: PluginOption = None,
) -> None:
    """Predict for every row of a table: the probability of each class, and the class at the model's threshold; the
    risk score of a survival model."""
    from wardround import plugins
    from wardround.datasets.csv_files import read_table
    from wardround.files import replace_file
    from wardround.runs.export.exported import parse_model, read_model_folder
    from wardround.runs.export.manifest import MANIFEST, SIGNATURE
    from wardround.runs.export.signature import verify
    from wardround.threads import one_thread

    plugins.load_all(plugin)
    files = read_model_folder(model)
    if authority is not None:
        try:
            verify(files[MANIFEST], files.get(SIGNATURE), authority)
        except DataError as error:
            raise DataError(f"{model}: {error}") from None
    exported = parse_model(files, model)
    if exported.scales_apart:
        print(
            "wardround: in training every hospital scaled its numbers by itself (preprocessing.scale: local); here the "
            "federation's common scales are used",
            file=sys.stderr,
        )
    columns = read_table(table, keep or [])
    with one_thread():
        predictions = exported.predict_table(columns, str(table))
    kept = {name: columns[name] for name in keep or []}
    unused = [name for name in columns if name not in exported.known_columns() and name not in kept]
    if unused:
        shown = ", ".join(unused[:8]) + (f" and {len(unused) - 8} more" if len(unused) > 8 else "")
        print(f"wardround: columns that the model does not use: {shown}", file=sys.stderr)
    text = _as_csv(predictions, kept)
    if out is None:
        print(text, end="")
        return
    try:
        replace_file(out, text.encode())
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from None
    print(f"{len(predictions.probabilities)} rows: {out}", file=sys.stderr)


def _as_csv(predictions: Predictions, kept: dict[str, list[str]]) -> str:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    has_classes = bool(predictions.labels)
    names = [f"probability_{name}" if has_classes else name for name in predictions.class_names]
    writer.writerow(["row", *kept, *names, *(["class"] if has_classes else [])])
    for index, shares in enumerate(predictions.probabilities):
        own = [cells[index] for cells in kept.values()]
        label = [predictions.labels[index]] if has_classes else []
        writer.writerow([index + 1, *own, *(f"{share:.6g}" for share in shares), *label])
    return content.getvalue()
