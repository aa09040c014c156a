"""The command line: parse, call, print. Heavy packages are imported by the command that needs them."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from wardround import __version__
from wardround.cli.data import app as data_app
from wardround.cli.flower import mount as mount_flower
from wardround.cli.plugins import PluginOption, add_plugins, load_plugins
from wardround.cli.privacy import mount as mount_privacy
from wardround.cli.redteam import mount as mount_redteam
from wardround.cli.watch import watch
from wardround.errors import ConfigError, WardroundError

if TYPE_CHECKING:
    from wardround.experiments import Event, RunConfig
    from wardround.experiments.matrix import Executor

__all__ = ["app", "main"]

app = typer.Typer(
    help="Byzantine-robust federated learning for healthcare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

STOPPED = 130  # what shells expect after Ctrl-C
CORES = os.cpu_count() or 1

app.add_typer(data_app, name="data")
mount_privacy(app)
mount_flower(app)
mount_redteam(app)
app.command("watch")(watch)

Out = Annotated[Path, typer.Option("--out", help="Folder for the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes side by side.")]
RunPaths = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")]


class Kind(StrEnum):
    """What can be listed."""

    AGGREGATORS = "aggregators"
    ATTACKS = "attacks"
    DATASETS = "datasets"
    MODELS = "models"
    PARTITIONS = "partitions"
    PRESETS = "presets"
    SCENARIOS = "scenarios"


class ExecutorName(StrEnum):
    """Who works off a matrix."""

    LOCAL = "local"
    RAY = "ray"


class TrackerName(StrEnum):
    """Who else is told of runs."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


Track = Annotated[TrackerName | None, typer.Option("--track", help="Log the runs to a tracker as well.")]
TrackUri = Annotated[
    str | None,
    typer.Option("--track-uri", help="MLflow's tracking URI; none: a SQLite file in the --out folder."),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"wardround {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hospitals train one model together; some are broken or malicious; the model comes out right."""


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    jobs: Jobs = CORES,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, and 25 rounds instead of 50.")] = False,
) -> None:
    """Real data, honest and attacked, FedAvg against robust rules: a table and a page in about two minutes."""
    from wardround.analysis import compare, load_runs
    from wardround.cli.console import comparison_table, console

    configs = _run_matrix("demo", out, jobs, quick=quick)
    runs = load_runs([out / config.run_name for config in configs])
    title = "20 hospitals predict death in intensive care; 4 turn malicious in round 15"
    console.print(comparison_table(compare(runs), title))
    console.print(
        "AUROC: 1 ranks all patients right, 0.5 is chance. 'lost' is clean minus attacked, same seed."
    )
    report(
        paths=[run.folder.path for run in runs],
        out=out / "report.html",
        title="wardround demo",
        figures=None,
    )


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="YAML file of one experiment.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="For example aggregator.name=krum seed=3"),
    ] = None,
    out: Out = Path("runs"),
    plugin: PluginOption = None,
    as_json: AsJson = False,
    track: Track = None,
    track_uri: TrackUri = None,
) -> None:
    """Run one experiment, or go on with it where it was stopped."""
    from wardround.cli.console import progress
    from wardround.experiments import Event, load_config, override, read_yaml
    from wardround.experiments import run as run_experiment
    from wardround.experiments.tracking import tracked

    values = add_plugins(read_yaml(config), plugin)
    checked = load_config(override(values, overrides or []), str(config))
    name = checked.run_name
    with (
        progress(name, checked.rounds) as advance,
        tracked(track, track_uri, None, out, lambda event: advance(event.round, _auroc(event.auroc))) as note,
    ):
        folder = run_experiment(
            checked,
            out,
            lambda told: note(Event("round", name, told.round, (told.metrics or {}).get("auroc"))),
        )
        summary = folder.summary()
        assert summary is not None
        note(Event("finished", name, checked.rounds, summary.auroc))
    if as_json:
        print(json.dumps({"folder": str(folder.path), **summary.plain()}))
        return
    final = summary.final or {}
    print(
        f"{summary.status} after {summary.rounds} rounds"
        + (f" ({summary.reason})" if summary.reason else "")
        + ": "
        + ", ".join(
            f"{name} {final[name]:.3f}" for name in final if name != "round" and final[name] is not None
        )
    )
    print(folder.path)


@app.command()
def matrix(
    matrix: Annotated[str, typer.Argument(metavar="MATRIX.yaml|PRESET", help="`wardround list presets`")],
    out: Out = Path("runs"),
    jobs: Jobs = CORES,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many runs there are.")] = False,
    executor: Annotated[ExecutorName, typer.Option(help="Where the runs go.")] = ExecutorName.LOCAL,
    ray_address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; none: Ray is started on this machine.")
    ] = None,
    plugin: PluginOption = None,
    track: Track = None,
    track_uri: TrackUri = None,
) -> None:
    """Run many experiments side by side; what is finished is skipped, what was stopped goes on."""
    from wardround.analysis import compare, load_runs
    from wardround.cli.console import comparison_table, console

    configs = _run_matrix(
        matrix, out, jobs, dry_run, executor.value, ray_address, track, track_uri, plugins=plugin
    )
    if not dry_run:
        runs = load_runs([out / config.run_name for config in configs])
        console.print(comparison_table(compare(runs), f"{len(runs)} runs"))


def _run_matrix(
    name: str,
    out: Path,
    jobs: int,
    dry_run: bool = False,
    executor: Executor = "local",
    ray_address: str | None = None,
    track: TrackerName | None = None,
    track_uri: str | None = None,
    quick: bool = False,
    plugins: list[str] | None = None,
) -> list[RunConfig]:
    from wardround.cli.console import progress
    from wardround.experiments import expand, presets, run_many
    from wardround.experiments.estimate import estimate
    from wardround.experiments.tracking import tracked

    values, where = presets.load_matrix(name)
    if quick:
        values["base"]["rounds"], values["seeds"] = 25, [0]
    values["base"] = add_plugins(values.get("base") or {}, plugins)
    configs = expand(values, where)
    total = sum(config.rounds for config in configs)
    if dry_run:
        told = estimate(configs, out, jobs)
        print(
            f"{where}: {len(configs)} runs, {total} rounds; {told.left} to do with {jobs} jobs: {told.words}"
        )
        return configs
    done = dict.fromkeys((config.run_name for config in configs), 0)
    failures: list[Event] = []
    with progress(f"{len(configs)} runs", total) as advance:

        def note(event: Event) -> None:
            done[event.run] = max(event.round, done[event.run])
            if event.kind == "failed":
                failures.append(event)
            advance(sum(done.values()), event.run)

        with tracked(track, track_uri, Path(name).stem, out, note) as listen:
            run_many(configs, out, jobs, listen, executor, ray_address)
    if failures:
        for event in failures:
            print(f"failed: {event.run}: {event.reason}", file=sys.stderr)
        raise WardroundError(f"{len(failures)} of {len(configs)} runs failed; the others are in {out}")
    return configs


@app.command()
def analyze(
    paths: RunPaths,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for Markdown, CSV, LaTeX.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="The method that others are compared with (caac, if there).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Metrics, statistics and hypotheses of some runs, as tables."""
    from wardround.analysis import analyze as analyze_runs
    from wardround.analysis import load_runs, write
    from wardround.cli.console import progress
    from wardround.protocols import papers

    runs = load_runs(paths)
    with progress("reading runs", len(runs)) as advance:
        found = analyze_runs(runs, reference, advance, papers())
    if out is not None:
        write(found, out)
    if as_json:
        print(json.dumps(found.plain()))
    elif out is None:
        print(found.markdown())
    else:
        for verdict in found.verdicts:
            print(f"{verdict.key}: {verdict.verdict}: {verdict.reason}")
        print(f"tables: {out}")


@app.command()
def report(
    paths: RunPaths,
    out: Annotated[Path, typer.Option("--out", help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str, typer.Option("--title")] = "wardround report",
    figures: Annotated[
        Path | None, typer.Option(help="Also draw every figure as PNG, SVG and PDF into this folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about some runs."""
    from wardround.analysis import load_runs
    from wardround.cli.console import progress
    from wardround.protocols import papers
    from wardround.report.contents import collect
    from wardround.report.page import write_page
    from wardround.report.paper import write_figures

    runs = load_runs(paths)
    contents = collect(runs, papers())
    print(f"report: {write_page(runs, out, title, contents)}")
    if figures is not None:
        wanted = contents.all_figures
        with progress("figures", len(wanted)) as advance:
            for number, figure in enumerate(wanted, start=1):
                write_figures([figure], figures)
                advance(number)
        print(f"figures: {figures}")


@app.command("list")
def list_members(
    kind: Annotated[Kind, typer.Argument()], plugin: PluginOption = None, as_json: AsJson = False
) -> None:
    """What there is, with parameters and defaults."""
    from wardround.cli.console import console
    from wardround.cli.listing import listing, listing_table

    load_plugins(plugin)
    members = listing(kind.value)
    if as_json:
        print(json.dumps(members))
    else:
        console.print(listing_table(members, kind.value))


def _auroc(value: Any) -> str:
    return "" if value is None else f"AUROC {value:.3f}"


def main() -> None:
    """Entry point: one line on stderr and exit code 2 for whatever the user can mend."""
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        print(usage.format_message())
        code = 2
    except click.ClickException as usage:
        code = _complain(usage.format_message().replace("\n", " "))
    except (WardroundError, ConfigError) as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = STOPPED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if code == STOPPED:  # which is also how typer reports Ctrl-C
        print("wardround: stopped; the same command goes on from here", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"wardround: {message}", file=sys.stderr)
    return 2
