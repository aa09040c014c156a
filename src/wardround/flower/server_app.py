"""The federation's server app: reads `fed.yaml`, then runs all rounds.

Run configuration: `config`, the path of `fed.yaml`, or `config-text`, its text; `out`, the folder of the runs.
"""

from __future__ import annotations

import signal
import threading
from logging import INFO, getLogger
from pathlib import Path
from types import FrameType

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from wardround.flower.config import from_run_config
from wardround.flower.server.run import run_federation
from wardround.records import RoundRecord

__all__ = ["app"]

log = getLogger("flwr").log  # Flower's own log

STOPPING = (signal.SIGTERM, signal.SIGINT)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    stop_on_signals()
    run = context.run_config
    config = from_run_config(str(run.get("config", "")), str(run.get("config-text", "")))
    folder = run_federation(config, grid, Path(str(run.get("out", "runs"))), _log)
    log(INFO, "finished: %s", folder.path)


def stop_on_signals() -> None:
    """Stop on the first SIGTERM or SIGINT, so that the run is recorded as stopped; ignore those that follow.

    `systemctl stop` sends SIGTERM to every process at once, and `serve` then SIGINT to this one: neither may
    interrupt what the first one has begun. Flower's own handler would end the process in the middle.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # a simulation, which Flower stops

    def stop(number: int, frame: FrameType | None) -> None:
        for one in STOPPING:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for one in STOPPING:
        signal.signal(one, stop)


def _log(record: RoundRecord) -> None:
    measured = (record.metrics or {}).items()
    figures = ", ".join(f"{name} {value:.4f}" for name, value in measured if value is not None)
    log(INFO, "round %s: %s", record.round, record.skipped or figures or "done")
    for client, left_out in record.left_out.items():
        log(INFO, "round %s: without %s (%s)", record.round, client, left_out.reason)
