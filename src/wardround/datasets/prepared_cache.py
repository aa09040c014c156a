"""Raw files → a prepared cache, once; afterwards a dataset loads in a moment.

A cache is a folder `<root>/<name>-<key>`, the key a hash of the dataset's options, with a `manifest.json`
that says what it was made of. It is built under `<root>/.preparing` and moved into place when it is whole:
what a reader finds is always complete. Bad input leaves nothing behind. After an interruption the finished
stages (never a half-written file) stay in `.preparing`, and the same command resumes from them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wardround.datasets.base import Dataset, DatasetSource, registry
from wardround.errors import ConfigError, DataError, WardroundError
from wardround.files import UNFINISHED, LockHeld, can_lock, locked, replacing

__all__ = [
    "Cache", "PreparedSource", "Progress", "Workspace", "cache_folder", "data_root", "info", "open_cache",
    "prepare",
]  # fmt: skip

Progress = Callable[[str, int, int], None]
"""(stage, done, total): called as a stage moves on."""

MANIFEST, FINGERPRINT = "manifest.json", "fingerprint"


def data_root() -> Path:
    """Where caches live: `$WARDROUND_DATA`, else `wardround` in the user's cache folder."""
    root = os.environ.get("WARDROUND_DATA")
    if root:
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "wardround"


@dataclass(frozen=True)
class Cache:
    """A prepared dataset on disk."""

    folder: Path
    facts: dict[str, Any]
    """What is worth knowing about it: counts, coverage, what was left out."""

    def __truediv__(self, file: str) -> Path:
        return self.folder / file


@dataclass
class Workspace:
    """The place where a cache is being built."""

    folder: Path
    skip_corrupt: bool = False
    workers: int = 1
    progress: Progress = field(default=lambda stage, done, total: None)

    def has(self, file: str) -> bool:
        """Was this file finished, now or before an interruption?"""
        return (self.folder / file).exists()

    @contextmanager
    def writing(self, file: str) -> Iterator[Path]:
        """A path to write to; it becomes `file` when the block ends well, and vanishes when it does not."""
        with replacing(self.folder / file) as unfinished:
            yield unfinished

    def __truediv__(self, file: str) -> Path:
        return self.folder / file


class PreparedSource(DatasetSource):
    """A dataset whose raw files are prepared into a cache first."""

    version: ClassVar[int] = 1
    """Raised when what `build` writes changes: older caches are then prepared anew."""
    load_only: ClassVar[frozenset[str]] = frozenset()
    """Options that `read` alone looks at: they share one cache."""
    takes_folder: ClassVar[bool] = True
    """Whether the raw files are in a folder given to `prepare`; else the options name them."""

    @abstractmethod
    def raw_files(self, folder: Path | None) -> Iterable[Path]:
        """The raw files, checked to be there; a cache made of other files is made anew."""

    @abstractmethod
    def build(self, folder: Path | None, work: Workspace) -> dict[str, Any]:
        """Write the cache's files into the workspace and return the facts about them."""

    @abstractmethod
    def read(self, cache: Cache, seed: int) -> Dataset:
        """The dataset out of its cache."""

    def load(self, seed: int) -> Dataset:
        return self.read(open_cache(self), seed)


def cache_options(source: PreparedSource) -> dict[str, Any]:
    """The options that decide what is in the cache.

    An option that version 0.1 did not have, at its default, is none: caches of that version stay what they are.
    """
    fields, new = type(source.params).model_fields, source.params.new
    options = {
        key: value
        for key, value in source.params.model_dump().items()
        if key not in new or value != fields[key].default
    }
    return {
        key: str(value.resolve()) if isinstance(value, Path) else value
        for key, value in sorted(options.items())
        if key not in source.load_only
    }


def cache_folder(source: PreparedSource, root: Path | None = None, version: int | None = None) -> Path:
    """Where this dataset with these options has its cache; with `version`: where an earlier program put it."""
    content = json.dumps([source.name, version or source.version, cache_options(source)], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    return (root or data_root()) / f"{source.name}-{key}"


def command(source: PreparedSource) -> str:
    """The command that prepares this dataset with these options."""
    defaults = registry.describe(source.name)
    options = [
        f" {key}={json.dumps(value) if isinstance(value, list) else value}"
        for key, value in cache_options(source).items()
        if value != defaults[key]
    ]
    folder = " --source DIR" if source.takes_folder else ""
    return f"wardround data prepare {source.name}{folder}{''.join(options)}"


def open_cache(source: PreparedSource, root: Path | None = None) -> Cache:
    """The finished cache, or an error with the command that makes it."""
    folder = cache_folder(source, root)
    if not folder.is_dir():
        begun = (folder.parent / ".preparing" / folder.name).is_dir()
        older = (cache_folder(source, root, version) for version in range(1, source.version))
        earlier = next((path for path in older if path.is_dir()), None)
        state = "was not prepared to the end" if begun else "is not prepared yet"
        if earlier is not None and not begun:
            state = f"was prepared by an earlier version that kept less ({earlier}, which can be removed)"
        raise DataError(
            f"dataset '{source.name}' {state} (looked for {folder}); run: {command(source)}"
            + (f"   (DIR: {source.layout}; get it from {source.origin})" if source.takes_folder else "")
        )
    return Cache(folder, _manifest(folder, source)["facts"])


def _manifest(folder: Path, source: PreparedSource) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        manifest["facts"], manifest[FINGERPRINT]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder / MANIFEST} is missing or damaged; make it anew: {command(source)} --force"
        ) from None
    return manifest


def prepare(
    source: DatasetSource,
    folder: Path | None,
    *,
    skip_corrupt: bool = False,
    progress: Progress | None = None,
    workers: int | None = None,
    force: bool = False,
    root: Path | None = None,
) -> Path:
    """Build the cache of a dataset from its raw files; where it is there already, just say where."""
    if not isinstance(source, PreparedSource):
        raise ConfigError(f"dataset '{source.name}' needs no preparation: it loads as it is")
    if source.takes_folder:
        folder = _checked_folder(source, folder)
    elif folder is not None:
        raise ConfigError(f"dataset '{source.name}' takes no --source: its options name its files")
    target = cache_folder(source, root)
    fingerprint = _fingerprint(source, folder)
    if target.is_dir() and not force:
        manifest = _manifest(target, source)
        if manifest[FINGERPRINT] == fingerprint and (skip_corrupt or not manifest["facts"].get("unreadable")):
            return target
    with _workspace(target, fingerprint, force) as work:
        work.skip_corrupt = skip_corrupt
        work.workers = workers or os.cpu_count() or 1
        if progress is not None:
            work.progress = progress
        facts = source.build(folder, work)
        manifest = {
            "dataset": source.name,
            "options": cache_options(source),
            "source": str(folder) if folder else None,
            FINGERPRINT: fingerprint,
            "facts": facts,
        }
        (work / FINGERPRINT).unlink()
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1))
        _move_into_place(work.folder, target)
    return target


def _checked_folder(source: PreparedSource, folder: Path | None) -> Path:
    wanted = f"expected: {source.layout}; get it from {source.origin}"
    if folder is None:
        raise ConfigError(f"dataset '{source.name}' is prepared from raw files: give --source DIR ({wanted})")
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; {wanted}")
    return folder


def _fingerprint(source: PreparedSource, folder: Path | None) -> str:
    """Names, sizes and times of the raw files: enough to notice that they are others than before."""
    digest = hashlib.sha256()
    for path in sorted(source.raw_files(folder)):
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@contextmanager
def _workspace(target: Path, fingerprint: str, afresh: bool) -> Iterator[Workspace]:
    """A locked folder to build in. Finished stages survive an interruption, nothing survives bad input."""
    preparing = target.parent / ".preparing"
    preparing.mkdir(parents=True, exist_ok=True)
    folder = preparing / target.name
    with _locked(preparing / f"{target.name}.lock", target.name):
        if afresh or not folder.is_dir() or _read(folder / FINGERPRINT) != fingerprint:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / FINGERPRINT).write_text(fingerprint)
        for unfinished in folder.glob(f"*{UNFINISHED}"):  # a killed process could not clean up
            unfinished.unlink()
        try:
            yield Workspace(folder)
        except BaseException as error:
            bad_input = isinstance(error, WardroundError)
            if bad_input or not any(path.name != FINGERPRINT for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """One preparation of a cache at a time. The lock ends with the process, however that ends."""
    if not can_lock():  # two preparations at once are the user's to avoid on this platform
        yield
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(locked(path, wait=False))
            # A lock on a file that its last holder has just removed would hold nobody off.
            held = path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except (LockHeld, OSError):
            held = False
        if not held:
            raise ConfigError(f"{name} is being prepared by another process; wait for it")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty: another dataset is in the making
                path.parent.rmdir()


def _move_into_place(work: Path, target: Path) -> None:
    replaced = work.with_name(f"{work.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    work.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def info(source: DatasetSource | type[DatasetSource], root: Path | None = None) -> dict[str, Any]:
    """A dataset's description and options; of one with its options also the state of its cache."""
    result: dict[str, Any] = {
        "name": source.name,
        "summary": source.summary,
        "task": str(source.task),
        "licence": source.licence,
        "origin": source.origin,
        "layout": source.layout,
        "options": (
            source.params.model_dump(mode="json")
            if isinstance(source, DatasetSource)
            else registry.describe(source.name)
        ),
    }
    if isinstance(source, PreparedSource):
        folder = cache_folder(source, root)
        prepared = folder.is_dir()
        result["prepared"] = str(folder) if prepared else None
        result["command"] = command(source)
        result["facts"] = _manifest(folder, source)["facts"] if prepared else {}
    return result
