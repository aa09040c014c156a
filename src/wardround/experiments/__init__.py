"""Experiments: configuration, run folders, checkpoints, the runner and matrices of runs."""

from wardround.experiments import presets
from wardround.experiments.events import Event
from wardround.experiments.matrix import expand, run_many
from wardround.experiments.presets import override
from wardround.runs.config import RunConfig, load_config, read_yaml
from wardround.runs.folder import RunFolder, find_runs
from wardround.runs.runner import run

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
]
