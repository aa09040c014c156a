"""Presets and scenarios by name: matrices and attack settings that come with the package as YAML files.

A preset is a whole matrix (`wardround matrix caac-core`). A scenario is the attack section of one experiment of the
literature; `scenario=dos-noise-40` among the overrides of a run or matrix stands for all that it sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, did_you_mean
from wardround.runs import config
from wardround.yaml_text import parse_own_yaml

__all__ = ["available", "load_matrix", "override", "scenario", "scenarios", "text"]


@lru_cache(maxsize=1)
def _files() -> dict[str, dict[str, Any]]:
    """Preset files and scenario files by name: `protocols/<paper>/presets/*.yaml` and `protocols/scenarios/*.yaml`."""
    protocols = resources.files("wardround").joinpath("protocols")
    papers = [entry for entry in protocols.iterdir() if entry.joinpath("presets").is_dir()]
    files_by_kind = {
        "presets": [file for paper in papers for file in paper.joinpath("presets").iterdir()],
        "scenarios": list(protocols.joinpath("scenarios").iterdir()),
    }
    return {
        kind: {
            file.name.removesuffix(".yaml"): file
            for file in sorted(files, key=lambda file: file.name)
            if file.name.endswith(".yaml")
        }
        for kind, files in files_by_kind.items()
    }


def available() -> dict[str, str]:
    """Preset name → what it is (the comment that opens its file)."""
    descriptions = {}
    for name, file in _files()["presets"].items():
        lines = file.read_text(encoding="utf-8").splitlines()
        opening = [line.lstrip("# ") for line in lines[: _first_code_line(lines)]]
        descriptions[name] = " ".join(opening)
    return descriptions


def text(name: str) -> str:
    """The YAML of a preset."""
    presets = _files()["presets"]
    if name not in presets:
        raise ConfigError(f"no preset {name!r}; {did_you_mean(name, presets)}")
    content: str = presets[name].read_text(encoding="utf-8")
    return content


def load_matrix(name_or_file: str) -> tuple[dict[str, Any], str]:
    """A matrix from a preset's name or a YAML file, and what to call it in messages."""
    presets = _files()["presets"]
    if name_or_file in presets:
        return parse_own_yaml(presets[name_or_file].read_text(encoding="utf-8")), f"preset {name_or_file}"
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        raise ConfigError(f"no preset or file {name_or_file!r}; {did_you_mean(name_or_file, presets)}")
    return config.read_yaml(path), str(path)


def scenarios() -> dict[str, str]:
    """Scenario name → its title and source."""
    read = {
        name: parse_own_yaml(file.read_text(encoding="utf-8")) for name, file in _files()["scenarios"].items()
    }
    return {name: f"{content['title']} ({content['source']})" for name, content in read.items()}


def scenario(name: str) -> dict[str, Any]:
    """The part of a configuration that a scenario sets."""
    known = _files()["scenarios"]
    if name not in known:
        raise ConfigError(f"unknown scenario {name!r}; {did_you_mean(str(name), known)}")
    section: dict[str, Any] = parse_own_yaml(known[name].read_text(encoding="utf-8"))["config"]
    return section


def override(values: Mapping[str, Any], changes: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """`runs.config.override`, where the key `scenario` stands for all that the scenario sets; other keys win over it.

    >>> override({}, ["scenario=dos-noise-40", "attack.fraction=0.2"])["attack"]["fraction"]
    0.2
    """
    flat = config.parse_overrides(changes)
    if (name := flat.pop("scenario", None)) is not None:
        flat = {**config.dotted(scenario(name)), **flat}
    return config.override(values, flat)


def _first_code_line(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
