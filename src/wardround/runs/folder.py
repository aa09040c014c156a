"""A run's folder: what is in it, and how it stays whole when the process is killed at any moment.

Lines are appended round by round; `checkpoint.pt` is replaced atomically after each finished round and is
what counts: on resume, lines of rounds that the checkpoint does not know are cut off and done again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from wardround.errors import ConfigError, WardroundError

__all__ = ["TRACKERS", "RunFolder", "find_runs", "finite", "replace_file"]

TRACKERS = {"mlflow-artefacts", "wandb"}  # folders beside runs in which trackers keep copies of them


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.rounds_path = self.path / "rounds.jsonl"
        self.clients_path = self.path / "clients.jsonl"
        self.summary_path = self.path / "summary.json"
        self.checkpoint_path = self.path / "checkpoint.pt"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / ".lock", "a+")  # noqa: SIM115 - closed below, held meanwhile
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written ({error.strerror})") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WardroundError(f"{self.path}: another process is running this experiment") from None
            handle.truncate(0)
            handle.write(f"{os.getpid()}\n")  # for people who wonder which one
            handle.flush()
            yield

    def write_config(self, values: dict[str, Any]) -> None:
        replace_file(self.config_path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())

    def write_summary(self, values: dict[str, Any]) -> None:
        replace_file(self.summary_path, (json.dumps(finite(values), indent=2) + "\n").encode())

    def append(self, round_line: dict[str, Any], client_lines: list[dict[str, Any]]) -> None:
        """The lines of one round."""
        for path, lines in ((self.clients_path, client_lines), (self.rounds_path, [round_line])):
            with open(path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(finite(line)) + "\n" for line in lines))

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        temporary = self.checkpoint_path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave a name without its content
        os.replace(temporary, self.checkpoint_path)

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The state after the last finished round; None where no round is finished."""
        if not self.checkpoint_path.exists():
            return None
        try:
            return torch.load(self.checkpoint_path, weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WardroundError(
                f"{self.checkpoint_path}: not a checkpoint of this program ({reason}); remove it to start anew"
            ) from None

    def cut_after(self, round: int) -> None:
        """Forget the lines of rounds later than `round`, and of a line that was only half written."""
        for path in (self.rounds_path, self.clients_path):
            if path.exists():
                kept = [line for line in _whole_lines(path) if line["round"] <= round]
                replace_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def rounds(self) -> list[dict[str, Any]]:
        """The finished rounds, oldest first."""
        return list(_whole_lines(self.rounds_path))

    def clients(self) -> list[dict[str, Any]]:
        """A line a client and round."""
        return list(_whole_lines(self.clients_path))

    def summary(self) -> dict[str, Any] | None:
        """The summary, None where the run has not come to an end."""
        return json.loads(self.summary_path.read_text()) if self.summary_path.exists() else None

    def config(self) -> dict[str, Any]:
        """The configuration with its record."""
        try:
            return yaml.safe_load(self.config_path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: not a run folder (no config.yaml in it)") from None


def find_runs(paths: Sequence[Path]) -> Iterator[RunFolder]:
    """Every run folder at or below the given paths, sorted."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder")
        found = sorted(
            config.parent
            for config in path.rglob("config.yaml")
            if not TRACKERS & set(config.relative_to(path).parts)
        )
        if not found:
            raise ConfigError(f"{path}: no run in it (a run folder has a config.yaml)")
        yield from map(RunFolder, found)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return  # the process died while writing this one
            yield json.loads(line)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
