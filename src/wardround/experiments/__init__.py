"""Experiments: configuration, run folders, checkpoints, the runner and matrices of runs."""

from wardround.experiments import presets, scenarios
from wardround.experiments.config import RunConfig, load_config, override, read_yaml
from wardround.experiments.events import Event
from wardround.experiments.folder import RunFolder, find_runs
from wardround.experiments.matrix import expand, run_many
from wardround.experiments.runner import run

__all__ = [
    "Event",
    "RunConfig",
    "RunFolder",
    "expand",
    "find_runs",
    "load_config",
    "override",
    "presets",
    "read_yaml",
    "run",
    "run_many",
    "scenarios",
]
