"""`wardround redteam`: search for the attack that hurts a rule most. Light to import."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli.options import CORES, AsJson, Jobs
from wardround.cli.plugins import PluginOption, add_plugins
from wardround.errors import ConfigError

if TYPE_CHECKING:
    from wardround.experiments.redteam import Findings, Plan

__all__ = ["mount", "redteam"]

PRESET = "redteam"  # the setting without --config


class SamplerName(StrEnum):
    """How the next attack to try is chosen."""

    TPE = "tpe"
    RANDOM = "random"


class MetricName(StrEnum):
    """The metric that an attack is to lower."""

    AUROC = "auroc"
    C_INDEX = "c_index"
    AUPRC = "auprc"
    ACCURACY = "accuracy"
    F1 = "f1"


def mount(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("redteam")(redteam)


def redteam(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="With --leaderboard: folders of red-team searches."),
    ] = None,
    aggregator: Annotated[
        str | None,
        typer.Option("--aggregator", "-a", help="The rule to attack: `wardround list aggregators`."),
    ] = None,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Print the worst case of every rule in the folders.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of the run to attack, or a matrix or preset whose `runs` are the settings to search; "
            "default: the preset `redteam`."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of attacks to try in total.")] = 60,
    seeds: Annotated[
        str | None, typer.Option(help="Separated by commas; default: the preset's, or 200,201 with --config.")
    ] = None,
    fraction: Annotated[float, typer.Option(help="The largest share of Byzantine clients.")] = 0.4,
    metric: Annotated[
        MetricName, typer.Option(help="The metric that the attack is to lower.")
    ] = MetricName.AUROC,
    sampler: Annotated[SamplerName, typer.Option(help="How the next attack is chosen.")] = SamplerName.TPE,
    search_seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    without: Annotated[
        list[str] | None, typer.Option(help="An attack to leave out; may be given more than once.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Minutes after which no new attack is started.")
    ] = None,
    jobs: Jobs = CORES,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the search; default: runs/redteam/NAME.")
    ] = None,
    plugin: PluginOption = None,
    as_json: AsJson = False,
) -> None:
    """Search for the attack that hurts a rule most; run the same command to resume a stopped search."""
    if leaderboard:
        _print_leaderboard(folders or [], aggregator, as_json)
        return
    if aggregator is None:
        raise ConfigError("redteam: name the rule with --aggregator, or give --leaderboard and folders")
    if folders:
        raise ConfigError(f"redteam: {folders[0]}: folders go with --leaderboard")
    plan = _plan(
        aggregator, config, seeds, plugin,
        max_fraction=fraction, metric=metric.value, sampler=sampler.value, search_seed=search_seed,
        without=tuple(without or ()),
    )  # fmt: skip
    folder = out or Path("runs/redteam") / aggregator
    findings = _search(plan, folder, trials, jobs, budget)
    if as_json:
        print(findings.model_dump_json())
        return
    from wardround.cli.console import console
    from wardround.experiments.redteam.page import worst_table

    console.print(worst_table(findings))
    print(f"configurations to replay, picture and page: {folder}")


def _plan(
    aggregator: str, config: Path | None, seeds: str | None, plugins: list[str] | None, **rest: Any
) -> Plan:
    """The plan that the command line asks for, or one line on what is wrong with it."""
    from pydantic import ValidationError

    from wardround.experiments import presets
    from wardround.experiments.redteam import Plan
    from wardround.registry import explain

    preset, _ = presets.load_matrix(PRESET)
    values = preset if config is None else presets.load_matrix(str(config))[0]
    base = add_plugins(values.get("base", values), plugins)
    if "base" in values:
        if "axes" in values:
            raise ConfigError(f"redteam: {config}: settings are written as runs, not as axes")
        rest["settings"] = tuple(values.get("runs") or ())
        rest["f"] = values.get("f")
    chosen = (
        (values.get("seeds") or preset["seeds"])
        if seeds is None
        else [_whole(seed) for seed in seeds.split(",")]
    )
    try:
        plan = Plan(aggregator=aggregator, base=base, seeds=chosen, **rest)
    except ValidationError as error:
        raise ConfigError(f"redteam: {explain(error, Plan)}") from None
    plan.check()  # a wrong rule or base is an error before anything is written
    return plan


def _whole(seed: str) -> int:
    if not seed.strip().isdigit():
        raise ConfigError(f"--seeds: whole numbers with commas between, for example 200,201; got {seed!r}")
    return int(seed)


def _search(plan: Plan, out: Path, trials: int, jobs: int, budget: float | None) -> Findings:
    from wardround.cli.console import progress
    from wardround.experiments.redteam import search
    from wardround.experiments.redteam.page import write

    with progress(f"red team against {plan.rule}", trials) as advance:

        def show(done: int, findings: Findings) -> None:
            worst = findings.worst[:1]
            advance(done, f"worst: {worst[0].name}, lost {worst[0].loss:.3f}" if worst else "")

        findings = search(plan, out, trials, jobs, budget, show)
    write(findings, out)
    return findings


def _print_leaderboard(folders: list[Path], aggregator: str | None, as_json: bool) -> None:
    from wardround.experiments.redteam import read_findings
    from wardround.experiments.redteam.page import leaderboard

    if aggregator is not None or not folders:
        raise ConfigError("redteam: --leaderboard takes the folders of red teams, and no --aggregator")
    teams = read_findings(folders)
    if as_json:
        worst = {
            findings.plan.rule: findings.worst[0].model_dump(mode="json")
            for findings in teams
            if findings.worst
        }
        print(json.dumps(worst))
        return
    print(leaderboard(teams), end="")
