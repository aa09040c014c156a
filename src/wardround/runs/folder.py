"""A run's folder: what is in it, and how it stays whole when the process is killed at any moment.

Lines are appended round by round, and are on the disk before `checkpoint.pt` is replaced, which happens atomically
after each finished round. The checkpoint is what counts: on resume, lines of rounds that it does not know are cut off
and done again, and lines that it knows must be there, unchanged. `integrity.py` has the hashes.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml

import wardround
from wardround.errors import ConfigError, DataError, WardroundError, WardroundWarning
from wardround.files import (
    LockHeld,
    append_text,
    locked,
    make_private_folder,
    replace_file,
    replacing,
    sync_file,
)
from wardround.records import SCHEMA_VERSION, ClientRecord, RoundRecord, Summary, check_schema, finite
from wardround.runs.integrity import (
    HASH,
    SEALED_SINCE,
    Extent,
    Growing,
    add_hash,
    check_hash,
    check_seal,
    missing_rounds,
    seal,
)
from wardround.yaml_text import dump_yaml, parse_own_yaml

__all__ = ["TRACKERS", "RunFolder", "find_runs"]

TRACKERS = {"mlflow-artefacts", "wandb"}  # folders beside runs in which trackers keep copies of them
RECORD = "record"
Record = TypeVar("Record", RoundRecord, ClientRecord)
_LINE_START = re.compile(rb'\{"round": (\d+),')
_encode_finite = json.JSONEncoder(check_circular=False, allow_nan=False).encode  # records are trees
RUN_ANEW = "restore it from a copy, or remove the folder and run it anew"


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.rounds_path = self.path / "rounds.jsonl"
        self.clients_path = self.path / "clients.jsonl"
        self.summary_path = self.path / "summary.json"
        self.checkpoint_path = self.path / "checkpoint.pt"
        self._growing: dict[str, Growing] = {}
        self._unsynced: set[Path] = set()

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
        """Write the configuration; where it has a record, this gets the hash of all values."""
        text = dump_yaml(values)
        if isinstance(values.get(RECORD), Mapping):
            digest = seal(_unsealed(parse_own_yaml(text)))
            values = {**values, RECORD: {**values[RECORD], HASH: digest}}
            text = dump_yaml(values)
        replace_file(self.config_path, text.encode())

    def write_summary(self, summary: Summary) -> None:
        """Write the summary, with what it was made of: how long the files of lines are, and their hashes."""
        self._sync_lines()
        values = {**summary.plain(), "files": self.extents()}
        values[HASH] = seal(values)
        replace_file(self.summary_path, (json.dumps(values, indent=2) + "\n").encode())

    def append(self, record: RoundRecord, durable: bool = True) -> None:
        """Write one round: its clients' lines first, so that a round with a line of its own is complete.

        Lines that need not be `durable` at once are on the disk before the next checkpoint or summary.
        """
        for path, records in ((self.clients_path, record.clients), (self.rounds_path, [record])):
            text = "".join(_encode(one.values()) + "\n" for one in records)
            growing = self._growing_file(path)  # before anything is appended
            append_text(path, text, durable=durable)
            if not durable:
                self._unsynced.add(path)
            growing.add(text.encode())

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint by this state; it says which version wrote it and which lines belong to it.

        A state that was kept for a while says under `files` how long the lines were then.
        """
        self._sync_lines()
        written_by = {"schema": SCHEMA_VERSION, "wardround": wardround.__version__}
        with replacing(self.checkpoint_path) as temporary:
            torch.save({"files": self.extents(), **state, **written_by}, temporary)
            add_hash(temporary)

    def _sync_lines(self) -> None:
        for path in sorted(self._unsynced):
            sync_file(path)
        self._unsynced.clear()

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The state after the last finished round; None where no round is finished."""
        try:
            content = self.checkpoint_path.read_bytes()
        except FileNotFoundError:
            return None
        whole = check_hash(content)
        try:
            if whole is False:
                raise DataError("its bytes are not those of its hash")
            state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
            if whole is None and int(state.get("schema", 1)) >= SEALED_SINCE:
                raise DataError("its hash is missing")
            number: int = state["round"]
            assert number >= 1
        except Exception as error:  # torch raises whatever the damage leads it into
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(
                f"{self.checkpoint_path}: damaged, or not a checkpoint of this program ({reason}); "
                "restore it from a copy, or remove the folder to start anew"
            ) from None
        check_schema(state, self.checkpoint_path)
        return state

    def resume(self, mix_versions: bool = False) -> dict[str, Any] | None:
        """Prepare the folder for the rounds after the last finished one: check it, and cut off what came later.

        Args:
            mix_versions: Resume what another version of wardround has begun, with a warning; else that is refused.

        Returns:
            The state after the last finished round; None where there is none and the run begins.

        Raises:
            DataError: Something is damaged or missing.
        """
        state = self.read_checkpoint()
        if self.config_path.exists():
            self.config()  # one that is damaged must not be overwritten silently
        elif state is not None:
            raise DataError(f"{self.config_path}: missing; {RUN_ANEW}")
        if state is None:
            if self.rounds_path.exists() and self.rounds_path.read_bytes().count(b"\n") > 1:
                raise DataError(f"{self.checkpoint_path}: missing, although rounds are finished; {RUN_ANEW}")
        else:
            self._check_version(state, mix_versions)
        self.summary_path.unlink(missing_ok=True)  # it was about less than what follows
        self._cut(state)
        return state

    def _check_version(self, state: Mapping[str, Any], mix_versions: bool) -> None:
        record = self.config().get(RECORD) or {}
        before, now = state.get("wardround", record.get("wardround")), wardround.__version__
        if before not in (None, now):
            begun = f"{self.path}: begun by wardround {before}, this is {now}"
            if not mix_versions:
                raise ConfigError(
                    f"{begun}: a run of two versions is neither's result; resume it with wardround {before}, "
                    "or give another --out to run it anew"
                )
            warnings.warn(f"{begun}: its later rounds are computed by another version", WardroundWarning, 2)
        if _schema(state.get("schema", 1)) < SEALED_SINCE:
            warnings.warn(
                f"{self.checkpoint_path}: of an older schema, without a hash: it cannot be told whether it is "
                "undamaged",
                WardroundWarning,
                2,
            )

    def _cut(self, state: Mapping[str, Any] | None) -> None:
        """Forget the lines of rounds that the state does not know, and a line that was only half written."""
        done = 0 if state is None else state["round"]
        for path in (self.rounds_path, self.clients_path):
            if state is not None and "files" in state:
                kept = Extent.from_plain(state["files"][path.name]).check(path, RUN_ANEW)
            else:  # of an older version, or none
                lines = [line for line in _read_lines(path) if line["round"] <= done]
                kept = "".join(json.dumps(line) + "\n" for line in lines).encode()
            if path.exists() and path.stat().st_size != len(kept):
                replace_file(path, kept)
            self._growing[path.name] = Growing().add(kept)
        self._check_rounds(done)

    def verify(
        self, config: Mapping[str, Any] | None = None, summary: Mapping[str, Any] | None = None
    ) -> None:
        """Check that the folder holds what its run wrote, all of it and unchanged; raise DataError where it does not.

        Folders of schema versions without hashes are checked for lines that are missing or cannot be read.

        Args:
            config: What `config()` gave, if it was read just now.
            summary: What `summary_values()` gave.
        """
        config = self.config() if config is None else config
        schema = _schema((config.get(RECORD) or {}).get("schema", 1))
        values = self.summary_values() if summary is None else summary
        if values is None:
            self._verify_unfinished()
            return
        for path, older in (
            (self.config_path, schema),
            (self.summary_path, _schema(values.get("schema", 1))),
        ):
            if older < SEALED_SINCE <= max(schema, _schema(values.get("schema", 1))):
                raise DataError(f"{path}: damaged, it lacks its schema version or its hash; {RUN_ANEW}")
        for name, extent in (values.get("files") or {}).items():
            Extent.from_plain(extent).check(self.path / name, RUN_ANEW, exact=True)
        known, has_hashes = Summary.from_plain(values), bool(values.get("files"))
        self._check_rounds(known.rounds if has_hashes or known.finished else None, whole=has_hashes)

    def _verify_unfinished(self) -> None:
        state = self.read_checkpoint()
        for name, extent in ({} if state is None else state.get("files", {})).items():
            Extent.from_plain(extent).check(self.path / name, RUN_ANEW)
        self._check_rounds(None)

    def _check_rounds(self, last: int | None, whole: bool = False) -> None:
        """Refuse lines that cannot be read, and rounds that are missing; `whole` lines are those of their hash."""
        numbers = _round_numbers(self.rounds_path) if whole else None
        if numbers is None:
            numbers = [record.round for record in self.rounds()]
        if (problem := missing_rounds(numbers, last)) is not None:
            raise DataError(f"{self.rounds_path}: damaged, {problem}; {RUN_ANEW}")

    def _growing_file(self, path: Path) -> Growing:
        if path.name not in self._growing:
            self._growing[path.name] = Growing().add(path.read_bytes() if path.exists() else b"")
        return self._growing[path.name]

    def extents(self) -> dict[str, Any]:
        """How long the files of lines are now, and their hashes."""
        return {
            path.name: self._growing_file(path).extent.plain()
            for path in (self.rounds_path, self.clients_path)
        }

    def rounds(self) -> list[RoundRecord]:
        """The finished rounds, oldest first; their clients are in `clients()`."""
        return _records(self.rounds_path, RoundRecord.from_line)

    def clients(self) -> list[ClientRecord]:
        """One record per client and round."""
        return _records(self.clients_path, ClientRecord.from_line)

    def summary(self) -> Summary | None:
        """The summary, None where the run has not come to an end."""
        values = self.summary_values()
        return None if values is None else Summary.from_plain(values)

    def summary_values(self) -> dict[str, Any] | None:
        """All that summary.json holds; None where the run has not come to an end."""
        advice = "remove the file and run the same command again to have it written anew"
        try:
            values = json.loads(self.summary_path.read_text(encoding="utf-8"))
            if not isinstance(values, dict) or "status" not in values:
                raise ValueError("no summary")
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            raise DataError(
                f"{self.summary_path}: damaged, not a summary that a run wrote; {advice}"
            ) from None
        check_schema(values, self.summary_path)
        check_seal(values, values, self.summary_path, advice)
        return values

    def config(self) -> dict[str, Any]:
        """The configuration with its record; a folder that a newer version wrote is refused."""
        try:
            values = parse_own_yaml(self.config_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: not a run folder (no config.yaml in it)") from None
        except (yaml.YAMLError, ValueError, RecursionError):
            raise ConfigError(f"{self.config_path}: not valid YAML, so not written by a run") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{self.config_path}: damaged, not keys and values; {RUN_ANEW}")
        record = values.get(RECORD)
        if isinstance(record, Mapping):
            check_schema(record, self.config_path)
            check_seal(_unsealed(values), record, self.config_path, RUN_ANEW)
        elif record is not None:
            raise ConfigError(f"{self.config_path}: damaged, its record is no mapping; {RUN_ANEW}")
        return values


def find_runs(paths: Sequence[Path]) -> Iterator[RunFolder]:
    """Every run folder at or below the given paths, sorted."""
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder")
        folders, with_rounds = _parents(path, "config.yaml", "rounds.jsonl")
        if not folders:
            raise ConfigError(f"{path}: no run in it (a run folder has a config.yaml)")
        if headless := sorted(with_rounds - folders):
            raise DataError(f"{headless[0]}: a run without its config.yaml; {RUN_ANEW}")
        yield from map(RunFolder, sorted(folders))


def _parents(path: Path, *names: str) -> list[set[Path]]:
    """For each name the folders at or below `path` with a file of that name, but not those of trackers."""
    found: list[set[Path]] = [set() for _ in names]
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if name not in TRACKERS]
        for name, folders in zip(names, found, strict=True):
            if name in files:
                folders.add(Path(folder))
    return found


def _encode(values: Mapping[str, Any]) -> str:
    """A line of JSON. Most have nothing but finite numbers: only the others are gone through value by value."""
    try:
        return _encode_finite(values)
    except (TypeError, ValueError):
        return _encode_finite(finite(values))


def _unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the hash in its record."""
    record = {key: value for key, value in values[RECORD].items() if key != HASH}
    return {**values, RECORD: record}


def _schema(version: Any) -> int:
    return version if isinstance(version, int) else 1


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one without an end is left out: its writer died while writing it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    try:
        values: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")  # faster than line by line
        if len(values) == len(lines) and all(_has_round(value) for value in values):
            return values
    except (ValueError, RecursionError):
        pass
    raise DataError(f"{path}: damaged, line {_first_bad_line(lines)} is not a record; {RUN_ANEW}")


def _round_numbers(path: Path) -> list[int] | None:
    """The numbers of the rounds in lines that a run has written; None where a line begins in another way."""
    content = path.read_bytes() if path.exists() else b""
    starts = [_LINE_START.match(line) for line in content.split(b"\n")[: content.count(b"\n")]]
    return None if None in starts else [int(start[1]) for start in starts if start is not None]


def _has_round(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("round"), int)


def _first_bad_line(lines: Sequence[bytes]) -> int:
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return number
        if not _has_round(value):
            return number
    return len(lines)


def _records(path: Path, read: Callable[[dict[str, Any]], Record]) -> list[Record]:
    lines = _read_lines(path)
    try:
        return [read(line) for line in lines]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: damaged, a line is not a record ({error!r}); {RUN_ANEW}") from None
