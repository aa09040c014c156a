"""Files that a configuration names for its dataset and its steward, seen from the configuration's folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wardround.errors import RenamedWarning

__all__ = ["anchored"]

ONE, SEVERAL = ("file", "schema", "database"), ("files", "databases")
"""Keys of a `dataset` section that hold a path, and a path per hospital."""
DUCKDB = "duckdb:///"


def anchored(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration (or a matrix of some) whose dataset's files and steward's keys are seen from `folder`.

    >>> anchored({"dataset": {"name": "csv", "file": "stays.csv"}, "rounds": 3}, Path("study"))
    {'dataset': {'name': 'csv', 'file': 'study/stays.csv'}, 'rounds': 3}
    """
    result = dict(values)
    if isinstance(section := values.get("dataset"), Mapping):
        result["dataset"] = _section(section, folder)
    if isinstance(privacy := values.get("privacy"), Mapping) and isinstance(
        keys := privacy.get("steward_keys"), str
    ):
        result["privacy"] = {**privacy, "steward_keys": _anchor(keys, folder, "privacy.steward_keys")}
    if isinstance(base := values.get("base"), Mapping):
        result["base"] = anchored(base, folder)
    return result


def _section(section: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    result = dict(section)
    for key in ONE:
        if isinstance(value := section.get(key), str):
            result[key] = _anchor(value, folder, f"dataset.{key}")
    for key in SEVERAL:
        if isinstance(several := section.get(key), Mapping):
            result[key] = {
                name: _anchor(value, folder, f"dataset.{key}.{name}") if isinstance(value, str) else value
                for name, value in several.items()
            }
    return result


def _anchor(value: str, folder: Path, key: str) -> str:
    prefix = DUCKDB if value.startswith(DUCKDB) else ""
    path = value.removeprefix(prefix)
    if not path or "://" in path or Path(path).is_absolute():
        return value
    beside = folder / path
    if not beside.exists() and Path(path).exists():
        warnings.warn(
            f"{key}: {path} is now looked for in the folder of the configuration, {folder}, where it is not; the "
            "one in the present folder is used, until the next release",
            RenamedWarning,
            stacklevel=2,
        )
        return value
    return prefix + str(beside)
