"""The federation's server app: reads `fed.yaml`, then runs all rounds.

Run configuration: `config`, the path of `fed.yaml`, or `config-text`, its text; `out`, the folder of the runs.
"""

from __future__ import annotations

from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from wardround.flower.config import from_run_config
from wardround.flower.server.run import run_federation
from wardround.records import RoundRecord

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    run = context.run_config
    config = from_run_config(str(run.get("config", "")), str(run.get("config-text", "")))
    folder = run_federation(config, grid, Path(str(run.get("out", "runs"))), _log)
    log(INFO, "finished: %s", folder.path)


def _log(record: RoundRecord) -> None:
    measured = (record.metrics or {}).items()
    figures = ", ".join(f"{name} {value:.4f}" for name, value in measured if value is not None)
    log(INFO, "round %s: %s", record.round, record.skipped or figures or "done")
    for client, left_out in record.left_out.items():
        log(INFO, "round %s: without %s (%s)", record.round, client, left_out.reason)
