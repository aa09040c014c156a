"""Many runs: a matrix file becomes a list of configurations, executed in parallel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from wardround import plugins
from wardround.errors import ConfigError, did_you_mean
from wardround.experiments.events import Event, Listener
from wardround.experiments.presets import override
from wardround.experiments.true_f import ATTACKERS, with_true_f
from wardround.runs.config import RunConfig, dotted, load_config, parse_overrides
from wardround.runs.identity import find_folder

__all__ = ["Executor", "expand", "run_many"]

Executor = Literal["local", "ray"]
KEYS = ("name", "base", "axes", "runs", "seeds", "f", "published")
"""`published` says what others measured in these runs; `wardround.analysis.published` reads it."""


def expand(
    matrix: Mapping[str, Any], where: str = "matrix", changes: Sequence[str] | Mapping[str, Any] = ()
) -> list[RunConfig]:
    """The runs of a matrix: `seeds` × `base` × (`runs` list × `axes` product), each once.

    Seed by seed and dataset by dataset: a worker then loads a dataset once for all runs on it, and a matrix that is
    stopped half-way has whole seeds to show. An axis or a run may name a `scenario`: an attack of the literature as
    `wardround list scenarios` has it.

    Args:
        matrix: Its keys `name`, `base`, `axes`, `runs`, `seeds` and `published`; `f: attackers` gives every rule that
            assumes a number of attackers the true one, where none is said.
        where: What opens every error message.
        changes: Overrides `key=value` of every run, which win over all that the matrix says; `seeds=[0,1]` and
            `axes.KEY=[…]` and `f=attackers` are of the matrix itself.

    >>> configs = expand({"base": {"rounds": 5}, "axes": {"aggregator.name": ["fedavg", "mean"]}, "seeds": [0, 1]})
    >>> [(config.aggregator["name"], config.seed) for config in configs]
    [('fedavg', 0), ('mean', 0), ('fedavg', 1), ('mean', 1)]
    """
    for key in matrix:
        if key not in KEYS:
            if (
                not any(known in matrix for known in KEYS if known not in ("name", "published"))
                and key in RunConfig.model_fields
            ):
                raise ConfigError(
                    f"{where}: the configuration of one run, not a matrix; use: wardround run {where}"
                )
            raise ConfigError(f"{where}: unknown key '{key}'; {did_you_mean(str(key), KEYS)}")
    matrix, said = _split_changes(matrix, parse_overrides(changes))
    base = {"name": matrix.get("name", "run"), **(matrix.get("base") or {})}
    plugins.load_all(base.get(plugins.KEY))  # before anything is overridden: members are looked up by name
    axes, runs = matrix.get("axes") or {}, matrix.get("runs") or [{}]
    for axis, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: axes.{axis} must be a list of values, got {values!r}")
    axes, seeds = _seeds(matrix, axes, runs, base, where)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    configs = [
        load_config(override(override(base, {"seed": seed, **dotted(change), **point}), said), where)
        for seed in seeds
        for change in runs
        for point in points
    ]
    if (f := matrix.get("f")) is not None:
        if f != ATTACKERS:
            raise ConfigError(
                f"{where}: f must be '{ATTACKERS}' (the number of attackers of each run), got {f!r}; a number is given "
                "as aggregator.f"
            )
        configs = [with_true_f(config, where) for config in configs]
    groups: dict[str, dict[str, RunConfig]] = {}  # in the order of their first runs
    for config in configs:
        groups.setdefault(f"{config.seed} {config.dataset}", {})[config.hash] = config
    return [config for group in groups.values() for config in group.values()]


def _seeds(
    matrix: Mapping[str, Any],
    axes: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    base: Mapping[str, Any],
    where: str,
) -> tuple[dict[str, Any], list[int]]:
    """The axes without the one of seeds, and the seeds: of `seeds`, of an axis `seed`, or of the base.

    A seed that would not be used is an error: nobody notices a seed that is ignored.
    """
    seeds = matrix.get("seeds")
    if seeds is not None and not isinstance(seeds, list | tuple):
        raise ConfigError(f"{where}: seeds must be a list, for example [0, 1, 2], got {seeds!r}")
    places = ["axes.seed"] if "seed" in axes else []
    places += [f"runs[{i}].seed" for i, change in enumerate(runs) if "seed" in change]
    if seeds and places:
        raise ConfigError(f"{where}: seeds and {places[0]} both say which seeds to run; give one of them")
    if len(places) > 1 and places[0] == "axes.seed":
        raise ConfigError(f"{where}: axes.seed and {places[1]} both say which seeds to run; give one of them")
    others = {key: values for key, values in axes.items() if key != "seed"}
    return others, list(seeds or axes.get("seed") or [base.get("seed", 0)])


def _split_changes(
    matrix: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The matrix with the changes that are its own, and those that are every run's."""
    changed, every_run = {**matrix, "axes": dict(matrix.get("axes") or {})}, {}
    for key, value in changes.items():
        if key.startswith("axes."):
            changed["axes"][key.removeprefix("axes.")] = value
        elif key == "seeds":
            if not isinstance(value, list) or not value:
                raise ConfigError(f"seeds must be a list, for example seeds=[0,1,2], got {value!r}")
            changed["seeds"] = value
        elif key == "f":
            changed["f"] = value
        else:
            every_run[key] = value
    return changed, every_run


def run_many(
    configs: Sequence[RunConfig],
    out: Path,
    jobs: int,
    listen: Listener,
    executor: Executor = "local",
    ray_address: str | None = None,
) -> list[Event]:
    """Execute all runs, `jobs` at a time. A failed run does not stop the others.

    Returns the last event of every run, in the order of `configs`.
    """
    ends: dict[str, Event] = {}

    def note(event: Event) -> None:
        if event.ends_the_run:
            ends[event.run] = event
        listen(event)

    waiting = []
    for config in configs:
        summary = find_folder(config, out).summary()
        if summary is not None and summary.finished:
            note(Event("skipped", config.run_name, config.rounds, summary.auroc))
        else:
            waiting.append(config)
    if waiting:
        _executor(executor, ray_address)(waiting, out, jobs, note)
    return [ends[config.run_name] for config in configs if config.run_name in ends]


def _executor(
    name: Executor, ray_address: str | None
) -> Callable[[Sequence[RunConfig], Path, int, Listener], None]:
    if name == "local":
        if ray_address is not None:
            raise ConfigError("--ray-address goes with --executor ray")
        from wardround.experiments.local_executor import run_in_processes

        return run_in_processes
    from wardround.experiments.ray_executor import run_on_ray

    return lambda configs, out, jobs, listen: run_on_ray(configs, out, jobs, listen, ray_address)
