"""Presets: matrices that come with the package, by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from wardround.errors import ConfigError, did_you_mean
from wardround.experiments.config import read_yaml

__all__ = ["available", "matrix_from"]


def _folder() -> Any:
    return resources.files("wardround.experiments").joinpath("presets")


def available() -> dict[str, str]:
    """Preset name → what it is (the comment that opens its file)."""
    found = {}
    for file in sorted(_folder().iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            lines = file.read_text(encoding="utf-8").splitlines()
            opening = [line.lstrip("# ") for line in lines[: _first_code_line(lines)]]
            found[file.name.removesuffix(".yaml")] = " ".join(opening)
    return found


def matrix_from(name_or_file: str) -> tuple[dict[str, Any], str]:
    """A matrix from a preset's name or a YAML file, and what to call it in messages."""
    if name_or_file in available():
        text = _folder().joinpath(f"{name_or_file}.yaml").read_text(encoding="utf-8")
        return yaml.safe_load(text), f"preset {name_or_file}"
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        raise ConfigError(f"no preset or file {name_or_file!r}; {did_you_mean(name_or_file, available())}")
    return read_yaml(path), str(path)


def _first_code_line(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
