"""Experiments: configuration, run folders, checkpoints and the runner."""

from wardround.experiments.config import RunConfig, load_config, override
from wardround.experiments.folder import RunFolder
from wardround.experiments.runner import run

__all__ = ["RunConfig", "RunFolder", "load_config", "override", "run"]
