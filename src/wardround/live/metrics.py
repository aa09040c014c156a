"""The live page's runs as metrics for Prometheus."""

from __future__ import annotations

import threading
from pathlib import Path

from wardround.live.feed import Feed
from wardround.runs.overview import RunOverview
from wardround.runs.prometheus import exposition

__all__ = ["RunMetrics"]

MOST_RUNS = 50
"""Of a folder with hundreds of experiments the latest are enough: each has dozens of time series."""


class RunMetrics:
    """Keeps what was read between two scrapes, so that each reads only new lines."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._overviews: dict[Path, RunOverview] = {}
        self._lock = threading.Lock()

    def text(self) -> str:
        """The metrics of federations and of runs that are going on."""
        with self._lock:
            return exposition(self._read())

    def _read(self) -> list[RunOverview]:
        runs = sorted(self.feed.runs.values(), key=lambda run: run.describe()["written"] or 0.0)[-MOST_RUNS:]
        paths = [run.path for run in runs if run.federation or run.summary is None]
        self._overviews = {path: self._overviews.get(path) or RunOverview(path) for path in sorted(paths)}
        for overview in self._overviews.values():
            overview.poll()
        return list(self._overviews.values())
