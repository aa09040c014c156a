"""A run's folder: what is in it, and how it stays whole when the process is killed at any moment.

Lines are appended round by round; `checkpoint.pt` is replaced atomically after each finished round and is
what counts: on resume, lines of rounds that the checkpoint does not know are cut off and done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from wardround.errors import ConfigError, DataError, WardroundError
from wardround.files import LockHeld, append_text, locked, make_private_folder, replace_file, replacing
from wardround.records import ClientRecord, RoundRecord, Summary, check_schema

__all__ = ["TRACKERS", "RunFolder", "find_runs"]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the compiled one is ten times as fast
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
    def locked(self, private: bool = False) -> Iterator[None]:
        """One writer at a time; the lock goes with the process, however it ends.

        A folder that is not there yet is made, for its owner only where it is `private`.
        """
        with ExitStack() as stack:
            try:
                if private:
                    make_private_folder(self.path)
                self.path.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(locked(self.path / ".lock", wait=False))
            except OSError as error:
                raise ConfigError(f"{self.path}: cannot be written ({error.strerror})") from None
            except LockHeld:
                raise WardroundError(f"{self.path}: another process is running this experiment") from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())  # for people who wonder which one
            file.flush()
            yield

    def write_config(self, values: dict[str, Any]) -> None:
        replace_file(self.config_path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())

    def write_summary(self, summary: Summary) -> None:
        replace_file(self.summary_path, (json.dumps(summary.plain(), indent=2) + "\n").encode())

    def append(self, record: RoundRecord) -> None:
        """Write one round: its clients' lines first, so that a round with a line of its own is complete."""
        clients = [client.line() for client in record.clients]
        for path, lines in ((self.clients_path, clients), (self.rounds_path, [record.line()])):
            append_text(path, "".join(json.dumps(line) + "\n" for line in lines))

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        with replacing(self.checkpoint_path) as temporary:
            torch.save(state, temporary)

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The state after the last finished round; None where no round is finished."""
        if not self.checkpoint_path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self.checkpoint_path, weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise WardroundError(
                f"{self.checkpoint_path}: not a checkpoint of this program ({reason}); remove it to start anew"
            ) from None
        return state

    def cut_after(self, round: int) -> None:
        """Forget the lines of rounds later than `round`, and of a line that was only half written."""
        for path in (self.rounds_path, self.clients_path):
            if path.exists():
                kept = [line for line in _read_lines(path) if line["round"] <= round]
                replace_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def rounds(self) -> list[RoundRecord]:
        """The finished rounds, oldest first; their clients are in `clients()`."""
        return [RoundRecord.from_line(line) for line in _read_lines(self.rounds_path)]

    def clients(self) -> list[ClientRecord]:
        """One record per client and round."""
        return [ClientRecord.from_line(line) for line in _read_lines(self.clients_path)]

    def summary(self) -> Summary | None:
        """The summary, None where the run has not come to an end."""
        try:
            values = json.loads(self.summary_path.read_text())
        except FileNotFoundError:
            return None
        check_schema(values, self.summary_path)
        return Summary.from_plain(values)

    def config(self) -> dict[str, Any]:
        """The configuration with its record; a folder that a newer version wrote is refused."""
        try:
            values: dict[str, Any] = yaml.load(self.config_path.read_text(), _Loader)
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: not a run folder (no config.yaml in it)") from None
        except yaml.YAMLError:
            raise ConfigError(f"{self.config_path}: not valid YAML, so not written by a run") from None
        record = values.get("record") if isinstance(values, Mapping) else None
        if isinstance(record, Mapping):
            check_schema(record, self.config_path)
        return values


def find_runs(paths: Sequence[Path]) -> Iterator[RunFolder]:
    """Every run folder at or below the given paths, sorted."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder")
        folders = sorted(
            config.parent
            for config in path.rglob("config.yaml")
            if not TRACKERS & set(config.relative_to(path).parts)
        )
        if not folders:
            raise ConfigError(f"{path}: no run in it (a run folder has a config.yaml)")
        yield from map(RunFolder, folders)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one without an end is left out: its writer died while writing it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    try:
        values: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")  # faster than line by line
    except ValueError as error:
        raise DataError(f"{path}: holds a line that is not JSON ({error})") from None
    return values
