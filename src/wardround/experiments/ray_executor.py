"""Runs in parallel on a Ray cluster: the same runs, the same folders, on more machines.

`ray start --head` on one machine, `ray start --address=HEAD:6379` on the others, then
`wardround matrix … --executor ray --ray-address HEAD:6379`. The output folder must be one that all machines
see: a run is resumed where it was stopped, on whichever machine, and its lock keeps it from being run twice.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wardround.errors import WardroundError, require
from wardround.experiments.events import ATTEMPTS, Event, Listener, run_and_report
from wardround.runs.config import RunConfig
from wardround.runs.folder import RunFolder

__all__ = ["run_on_ray"]

POLL_SECONDS = 1.0


def run_on_ray(
    configs: Sequence[RunConfig], out: Path, jobs: int, listen: Listener, address: str | None
) -> None:
    """Run all configurations as Ray tasks. Without an address, a Ray of `jobs` workers is started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would re-create the environment with uv when the driver was started by it; the workers have their own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray = require("ray", "ray")
    local = {"num_cpus": jobs, "include_dashboard": False} if address is None else {}
    if address is not None:
        _check_reachable(address)
    ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    try:
        _collect(ray, configs, out.absolute(), listen)
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would wait for minutes for a cluster that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise WardroundError(f"no Ray cluster at {address} ({error}); expected HOST:PORT") from None


def _collect(ray: Any, configs: Sequence[RunConfig], out: Path, listen: Listener) -> None:
    # A task whose worker dies is tried again by Ray, and resumes from the run's checkpoint.
    task = ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(_run_quietly)
    pending = {task.remote(config.run_name, config.plain(), out): config for config in configs}
    while pending:
        ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
        for config in pending.values():  # tasks cannot call back here: progress is read from the folders
            if done := _rounds_done(out / config.run_name):
                listen(Event("round", config.run_name, done))
        for reference in ready:
            config = pending.pop(reference)
            try:
                listen(ray.get(reference))
            except Exception as error:
                reason = f"its worker died twice ({type(error).__name__})"
                listen(Event("failed", config.run_name, reason=reason))


def _run_quietly(name: str, values: dict[str, Any], out: Path) -> Event:
    return run_and_report(name, values, out, lambda event: None)


def _rounds_done(path: Path) -> int:
    rounds = RunFolder(path).rounds_path
    return rounds.read_bytes().count(b"\n") if rounds.exists() else 0
