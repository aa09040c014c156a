"""Which folder holds a run: by what its configuration says, never mixed with a run that other defaults made."""

from __future__ import annotations

import glob
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, WardroundWarning
from wardround.plugins import KEY as PLUGINS
from wardround.runs.config import RECORD, RunConfig
from wardround.runs.folder import RunFolder

__all__ = ["adopt_former_folder", "experiment_of", "find_folder"]

NO_PART_OF_AN_EXPERIMENT = ("name", "engine", "device", "evaluate_every", PLUGINS, RECORD)
"""How a run is called, computed and looked at, not what it computes."""


def find_folder(config: RunConfig, out: Path, recorded: Mapping[str, Any] | None = None) -> RunFolder:
    """The folder of a run in `out`, where it is or where it will be.

    A run's name has the hash of what its configuration says; values that nobody said are the defaults. Where a
    default has changed since the folder was written, the same name would stand for two experiments: that is refused.
    A run that version 0.1 finished, under a name of its own, counts as finished.

    Args:
        config: The run.
        out: The folder of all runs.
        recorded: What the run writes into its config.yaml where that is not `config.plain()`: the server of a
            federation has no dataset, for example.

    Raises:
        ConfigError: The folder holds a run that was made with another default.
    """
    folder = RunFolder(Path(out) / config.run_name)
    if folder.config_path.exists():
        _check_defaults(folder, config.plain() if recorded is None else recorded)
        return folder
    former = RunFolder(Path(out) / config.legacy_run_name)
    summary = former.summary()
    if summary is not None and summary.finished:
        warnings.warn("runs that version 0.1 finished are not run again", WardroundWarning, stacklevel=2)
        return former
    return folder


def adopt_former_folder(config: RunConfig, out: Path) -> None:
    """Give the folder of an unfinished run of version 0.1 the name that this version looks for.

    For federations, which resume with a newer version: hospitals that have trained for weeks are not to begin anew. A
    simulation is begun anew instead, since a run of two versions is neither's result.

    Raises:
        ConfigError: There is such a run under this name, but its rule or model has got other defaults since.
    """
    folder = Path(out) / config.run_name
    if folder.exists():
        return
    for path in sorted(Path(out).glob(f"{glob.escape(config.name)}-{'[0-9a-f]' * 10}")):
        former = RunFolder(path)
        if not former.checkpoint_path.exists() or "schema" in (former.config().get(RECORD) or {}):
            continue
        if (summary := former.summary()) is not None and summary.finished:
            continue
        begun = f"{path}: begun by version 0.1"
        if path.name != config.legacy_run_name:
            raise ConfigError(
                f"{begun}, whose defaults were others; rename it to {folder.name} to resume it, or move it away "
                "to begin anew"
            )
        warnings.warn(f"{begun}; resumed as {folder.name}", WardroundWarning, stacklevel=2)
        path.rename(folder)


def experiment_of(config: Mapping[str, Any]) -> str:
    """The hash of what a run computed, from its config.yaml: the same for copies, whatever they are called.

    A run in which nobody attacked is a clean one, whichever attack did not take place; likewise of faults.
    """
    values = {key: value for key, value in config.items() if key not in NO_PART_OF_AN_EXPERIMENT}
    code = [plugin.get("sha256") for plugin in config.get(PLUGINS) or () if isinstance(plugin, Mapping)]
    if isinstance(initial := config.get("initial_model"), Mapping):
        values["initial_model"] = initial.get("sha256")
    campaign = (config.get(RECORD) or {}).get("attack")
    if isinstance(campaign, Mapping) and not campaign.get("byzantine"):
        values["attack"] = None
    if not ((config.get(RECORD) or {}).get("fault") or {}).get("broken"):
        values.pop("fault", None)  # older versions had none
    text = json.dumps([values, sorted(map(str, code))], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_defaults(folder: RunFolder, values: Mapping[str, Any]) -> None:
    present = {key: value for key, value in values.items() if key not in ("name", PLUGINS)}
    for key, before, now in _differences(folder.config(), present):
        raise ConfigError(
            f"{folder.path}: was run with {key} = {before!r}, the default of its version; now it is {now!r}: "
            f"remove the folder or give another --out to run anew, or say {key}={before} to stay with the old value"
        )


def _differences(
    recorded: Mapping[str, Any], present: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys that both have, with both values, where these differ."""
    for key, now in present.items():
        if key not in recorded:
            continue
        before = recorded[key]
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key}", before, now
