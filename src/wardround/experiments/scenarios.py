"""Attack scenarios of the literature by name: `scenario=dos-noise-40` among the overrides of a run or matrix."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from wardround.errors import ConfigError, did_you_mean

__all__ = ["available", "fixed_by"]


def _folder() -> Any:
    return resources.files("wardround.experiments").joinpath("presets/attacks")


def available() -> dict[str, str]:
    """Scenario name → what it is and where it stands."""
    files = sorted(_folder().iterdir(), key=lambda file: file.name)
    read = {
        file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text(encoding="utf-8")) for file in files
    }
    return {name: f"{content['title']} ({content['source']})" for name, content in read.items()}


def fixed_by(name: str) -> dict[str, Any]:
    """The part of a configuration that a scenario fixes."""
    file = _folder().joinpath(f"{name}.yaml")
    if not file.is_file():
        raise ConfigError(f"unknown scenario {name!r}; {did_you_mean(str(name), available())}")
    return yaml.safe_load(file.read_text(encoding="utf-8"))["config"]
