"""Clean worker processes that start quickly. Light to import, so that a command can begin with them.

A fork server imports what the workers need, once, and forks them from there: they have no threads and no state of the
process that asked for them. It can be started before that process has imported anything large itself; the two then
import side by side.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

__all__ = ["ANALYSIS", "EXPERIMENTS", "start_early", "worker_context"]

EXPERIMENTS = (
    "wardround.runs.runner",
    "wardround.training.fused.loops",
    "wardround.aggregators._math.compiled.loops",
)
"""Modules of workers that execute runs; the compiled loops are left out where numba is not installed."""
ANALYSIS = ("wardround.analysis.runs",)
"""Modules of workers that read runs."""


def worker_context(modules: Sequence[str]) -> BaseContext:
    """Where worker processes come from: a fork server that has imported these modules, if it was not started before.

    Where the platform has no fork server, every worker is a new process.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


def start_early(modules: Sequence[str]) -> None:
    """Start the fork server now and do not wait for it, where there is another core for it to import on."""
    if (os.cpu_count() or 1) > 1 and worker_context(modules).get_start_method() == "forkserver":
        forkserver.ensure_running()
