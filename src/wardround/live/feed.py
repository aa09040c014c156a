"""All runs below some folders, read by one thread for all browsers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from wardround.live.run import RunFeed

__all__ = ["Feed"]

RUN_FILES = {"config.yaml", "rounds.jsonl", "audit.jsonl"}  # any of these makes a folder a run
SKIPPED = {"mlflow-artefacts", "wandb"}  # folders in which trackers keep copies of runs
POLL = 0.4  # seconds between two polls of unfinished runs
SEARCH = 2.0  # seconds between two searches for new runs, and between two polls of runs that have ended
ENDED = ("finished", "diverged", "failed", "stopped")
IN_LABEL = {"aggregator.name", "aggregator.pre", "attack.name", "attack.fraction", "seed", "name"}


class Feed:
    """The runs, kept up to date. `version` grows with every change that a browser could show."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [Path(root) for root in roots]
        self.runs: dict[str, RunFeed] = {}
        self.version = 0
        self.published = 0
        """The last complete version: readers in other threads use this one."""
        self.gone: dict[str, int] = {}
        """Runs whose folder was removed, and the version in which that was noticed."""
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._searched = 0.0
        self._labelled: dict[str, Any] = {}
        self._thread: threading.Thread | None = None

    def start(self, changed: Callable[[], None]) -> None:
        """Start to read in a thread of its own; `changed` is called there after every change."""
        self._thread = threading.Thread(
            target=self._read_until_stopped, args=(changed,), name="feed", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def read_details(self, run: str) -> None:
        """Read the clients' lines of this run, too: somebody looks at it."""
        if run in self.runs and not self.runs[run].detailed:
            self.runs[run].detailed = True
            self._woken.set()

    def _read_until_stopped(self, changed: Callable[[], None]) -> None:
        while not self._stop.is_set():
            before = self.published
            more = self.poll()
            if self.published != before:
                changed()
            if not more:
                self._woken.wait(POLL)
                self._woken.clear()

    def poll(self) -> bool:
        """Find new runs and read a piece of every run that has grown; True where there is more to read."""
        now, first = time.monotonic(), not self._searched
        searching = first or now - self._searched >= SEARCH
        if searching:
            self._searched = now
            self._search()
            if first and self.runs:  # the run that the page shows first is read before somebody opens it
                self.read_details(max(self.runs.values(), key=lambda run: run.path.stat().st_mtime).id)
        more = False
        for run in list(self.runs.values()):
            if searching or run.detailed or run.summary is None or run.summary.status not in ENDED:
                changed, unread = run.poll()
                more |= unread
                if changed:
                    self._describe(run)
        if any(run.config is not self._labelled.get(run.id) for run in self.runs.values()):
            self._label()
        self.published = self.version
        return more

    def _describe(self, run: RunFeed) -> None:
        """The run has changed; its line in the list may have changed, too."""
        info = json.dumps(run.describe(), separators=(",", ":"))
        self.version += 1
        if info != run.info:
            run.info, run.version = info, self.version

    def _search(self) -> None:
        folders = {path: name for root in self.roots for path, name in _run_folders(root)}
        known = {run.path: run for run in self.runs.values()}
        new = [RunFeed(path, name) for path, name in folders.items() if path not in known]
        lost = [run for path, run in known.items() if path not in folders]
        for run in lost:
            self.version += 1
            del self.runs[run.id]
            self.gone[run.id] = self.version
        for run in new:
            self.runs[run.id] = run
            self.gone.pop(run.id, None)
            self._describe(run)

    def _label(self) -> None:
        """Label every run by its rule, attack and seed, and by the other parameters in which it differs."""
        flat = {run.id: _flat(run.config) for run in self.runs.values()}
        values: dict[tuple[str, Any], set[str]] = {}
        for config in flat.values():
            for key, value in config.items():
                values.setdefault((key, _compared_with(config, key)), set()).add(repr(value))
        differing = {
            run: [
                key
                for key in config
                if key not in IN_LABEL and len(values[key, _compared_with(config, key)]) > 1
            ]
            for run, config in flat.items()
        }
        for run in self.runs.values():
            run.group = _group(flat[run.id], differing[run.id], run.federation) or run.name
            run.label = f"{run.group} · seed {run.config.get('seed')}" if flat[run.id] else run.name
            self._describe(run)
        self._labelled = {run.id: run.config for run in self.runs.values()}

    @property
    def waiting(self) -> list[str]:
        """Folders to watch that do not exist yet, or hold no run yet."""
        paths = [run.path for run in list(self.runs.values())]
        without = [
            root for root in self.roots if not any(path.is_relative_to(root.resolve()) for path in paths)
        ]
        return [
            f"{root}: {'no run in it yet' if root.is_dir() else 'does not exist yet'}" for root in without
        ]


def _run_folders(root: Path) -> Iterator[tuple[Path, str]]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        if not RUN_FILES.isdisjoint(files):
            folders.clear()  # a run holds no runs
            path = Path(folder).resolve()
            name = os.path.relpath(folder, root)
            yield path, path.name if name == "." else name


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == "record":
            continue
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _compared_with(config: dict[str, Any], key: str) -> Any:
    """Among which runs a parameter is compared: those with the same member in that section (rule, attack, …)."""
    section, _, parameter = key.partition(".")
    return config.get(f"{section}.name") if parameter and parameter != "name" else None


def _group(values: dict[str, Any], differing: Sequence[str], federation: bool) -> str:
    """What the seeds of one experiment have in common: rule, attack, and parameters in which runs differ."""
    if not values:
        return ""
    before = [str(step.get("name")) for step in values.get("aggregator.pre", ())]
    parts = [" + ".join([*before, str(values.get("aggregator.name", ""))])]
    attack = values.get("attack.name")
    if attack and attack != "none":
        share = values.get("attack.fraction")
        parts.append(f"{attack} {100 * share:.0f} %" if isinstance(share, float) else str(attack))
    elif not federation:  # where nobody knows who attacks
        parts.append("clean")
    parts += [f"{key.split('.')[-1]} {values[key]}" for key in differing if values.get(key) is not None]
    return " · ".join(part for part in parts if part)
