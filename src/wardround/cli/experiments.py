"""`wardround demo`, `run` and `matrix`. Light to import: torch and the rest come when a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli.options import CORES, AsJson, Jobs, Out, Resume
from wardround.cli.plugins import PluginOption, add_plugins
from wardround.errors import ConfigError, WardroundError
from wardround.worker_processes import EXPERIMENTS, start_early

if TYPE_CHECKING:
    from wardround.experiments import Event, RunConfig
    from wardround.experiments.matrix import Executor

__all__ = ["demo", "matrix", "mount", "run"]


class ExecutorName(StrEnum):
    """What executes the runs of a matrix."""

    LOCAL = "local"
    RAY = "ray"


class TrackerName(StrEnum):
    """Where runs are logged as well."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


Track = Annotated[TrackerName | None, typer.Option("--track", help="Log the runs to a tracker as well.")]
TrackUri = Annotated[
    str | None,
    typer.Option("--track-uri", help="MLflow's tracking URI; without it a SQLite file in the --out folder."),
]


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (demo, run, matrix):
        app.command()(command)


def demo(
    out: Out = Path("runs/demo"),
    jobs: Jobs = CORES,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, and 20 rounds instead of 30.")] = False,
) -> None:
    """Find the rule to use on real data, with and without an attack; takes about a minute on two cores."""
    from wardround.analysis import analyze as analyze_runs
    from wardround.analysis import compare, load_runs
    from wardround.cli.analysis import write_report
    from wardround.cli.console import comparison_table, console
    from wardround.protocols import papers
    from wardround.runs.identity import find_folder

    configs = _run_matrix("demo", out, jobs, quick=quick)
    runs = load_runs([find_folder(config, out).path for config in configs])
    title = "20 hospitals predict death in intensive care; 8 turn malicious in round 10"
    for recommendation in analyze_runs(runs, papers=papers()).recommendations:
        console.print(f"\n[bold]{recommendation.headline}[/bold]")
        for sentence in recommendation.details:
            console.print(f"- {sentence}")
    console.print()
    console.print(comparison_table(compare(runs), title, {run.attack: run.attack_label for run in runs}))
    console.print(
        "AUROC: 1 ranks all patients right, 0.5 is chance. 'lost' is clean minus attacked, same seed."
    )
    write_report(runs, out / "report.html", "wardround demo: 20 hospitals, 8 turn malicious")


def run(
    config: Annotated[Path, typer.Argument(help="YAML file of one experiment.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="For example aggregator.name=krum seed=3"),
    ] = None,
    out: Out = Path("runs"),
    resume: Resume = None,
    plugin: PluginOption = None,
    as_json: AsJson = False,
    track: Track = None,
    track_uri: TrackUri = None,
) -> None:
    """Run one experiment, or resume it where it was stopped."""
    from wardround.cli.console import progress
    from wardround.experiments import Event, load_config, override, read_yaml
    from wardround.experiments import run as run_experiment
    from wardround.experiments.tracking import tracked
    from wardround.records import MAIN_METRICS, main_metric
    from wardround.runs.extension import extend
    from wardround.runs.folder import RunFolder
    from wardround.runs.identity import find_folder
    from wardround.runs.summary import why_no_auroc

    values = add_plugins(_one_run(config, read_yaml), plugin)
    checked = load_config(override(values, overrides or []), str(config))
    name = checked.run_name
    if resume is not None:
        extend(RunFolder(resume), find_folder(checked, out), checked)
    if not _describe_table(checked):
        _say_classes(checked, out)
    with (
        progress(name, checked.rounds) as advance,
        tracked(track, track_uri, None, out, lambda event: advance(event.round, _quality(event))) as note,
    ):
        folder = run_experiment(
            checked,
            out,
            lambda record: note(Event.of_round(name, record)),
        )
        summary = folder.summary()
        assert summary is not None
        note(
            Event(
                "finished",
                name,
                checked.rounds,
                summary.auroc,
                measure=MAIN_METRICS[main_metric(summary.final)],
            )
        )
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
    if (
        why := why_no_auroc(summary.final, folder.config().get("record", {}), summary.evaluation)
    ) is not None:
        print(f"no {MAIN_METRICS[main_metric(summary.final)]}: {why}")
    print(folder.path)


def _describe_table(config: RunConfig) -> bool:
    """Say what a user's own table holds and what is wrong with it, before training on it; False where it is none."""
    from wardround import datasets
    from wardround.datasets.csv_table import CsvTable

    name, params = config.section("dataset")
    if name != CsvTable.name:
        return False
    from wardround.datasets.table_check import check_table
    from wardround.datasets.table_check_text import in_short

    source = datasets.create(name, **params)
    assert isinstance(source, CsvTable)
    least = {} if (min_size := config.partition.get("min_size")) is None else {"min_size": min_size}
    for line in in_short(check_table(source, config.seed, **least)):
        print(line, file=sys.stderr)
    return True


def matrix(
    matrix: Annotated[str, typer.Argument(metavar="MATRIX.yaml|PRESET", help="`wardround list presets`")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Of every run, for example rounds=10 seeds=[0,1]"),
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = CORES,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print how many runs there are, and how long they take."),
    ] = False,
    executor: Annotated[ExecutorName, typer.Option(help="What executes the runs.")] = ExecutorName.LOCAL,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster; without it Ray is started on this machine."),
    ] = None,
    plugin: PluginOption = None,
    track: Track = None,
    track_uri: TrackUri = None,
) -> None:
    """Run many experiments in parallel; finished ones are skipped, stopped ones are resumed."""
    if not dry_run and executor is ExecutorName.LOCAL:
        start_early(EXPERIMENTS)
    from wardround.analysis import compare, load_runs, measure_all
    from wardround.analysis.published import published_table, read_published
    from wardround.cli.console import comparison_table, console, plain_table
    from wardround.experiments import presets
    from wardround.runs.identity import find_folder

    published = read_published(*presets.load_matrix(matrix))  # before anything is computed: it may be wrong
    configs = _run_matrix(
        matrix,
        out,
        jobs,
        dry_run,
        executor.value,
        ray_address,
        track,
        track_uri,
        plugins=plugin,
        overrides=overrides,
    )
    if not dry_run:
        runs = load_runs([find_folder(config, out).path for config in configs])
        console.print(comparison_table(compare(runs), f"{len(runs)} runs"))
        if published is not None:
            console.print(plain_table(published_table(published, measure_all(runs))))


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
    overrides: list[str] | None = None,
) -> list[RunConfig]:
    from wardround.cli.console import progress
    from wardround.experiments import expand, presets, run_many
    from wardround.experiments.estimate import estimate
    from wardround.experiments.tracking import tracked

    values, where = presets.load_matrix(name)
    if quick:
        values["base"]["rounds"], values["seeds"] = 20, [0]
    if plugins or "base" in values:
        values["base"] = add_plugins(values.get("base") or {}, plugins)
    configs = expand(values, where, overrides or ())
    total = sum(config.rounds for config in configs)
    if dry_run:
        cost = estimate(configs, out, jobs)
        print(
            f"{where}: {len(configs)} runs, {total} rounds; {cost.left} to do with {jobs} jobs: {cost.words}"
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


def _one_run(path: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The file of one run; what is a matrix or a preset says so."""
    from wardround.experiments import presets

    if not path.exists() and str(path) in presets.available():
        raise ConfigError(f"{path}: a preset of several runs; use: wardround matrix {path}")
    values = read(path)
    if {"base", "axes", "runs", "seeds"} & values.keys():
        raise ConfigError(f"{path}: a matrix of several runs; use: wardround matrix {path}")
    return values


def _say_classes(config: RunConfig, out: Path) -> None:
    """Say before the first round what is predicted: two labels the wrong way round would turn every figure over."""
    from wardround.datasets.targets import class_counts
    from wardround.runs.identity import find_folder
    from wardround.runs.runner import load_and_partition
    from wardround.threads import one_thread

    summary = find_folder(config, out).summary()
    if summary is not None and summary.finished:
        return
    with one_thread():
        data, _ = load_and_partition(config)  # the run finds it loaded; what is wrong with it is said alone
    if data.task.value == "survival":
        count, rows = class_counts(data.train.targets, 2)[1], len(data.train.targets)
        said = f"predicts the time to '{data.class_names[1]}', which {count} of {rows} training rows have"
    elif data.task.value == "binary":
        negative, positive = data.class_names
        count, rows = int((data.train.targets > 0).sum()), len(data.train.targets)
        said = f"predicts '{positive}' (against '{negative}'), {count} of {rows} training rows"
    else:
        said = f"predicts {len(data.class_names)} classes: {', '.join(data.class_names)}"
    print(f"{config.dataset['name']}: {said}", file=sys.stderr)


def _quality(event: Event) -> str:
    return "" if event.auroc is None else f"{event.measure} {event.auroc:.3f}"
