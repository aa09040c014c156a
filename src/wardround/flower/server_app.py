"""The federation's server app: reads `fed.yaml`, then coordinates.

Run configuration: `config`, the path of `fed.yaml`, or `config-text`, its text; `out`, the folder of the runs.
"""

from __future__ import annotations

from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from wardround.federation.rounds import RoundResult
from wardround.flower.config import given
from wardround.flower.server.coordinator import coordinate

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    run = context.run_config
    config = given(str(run.get("config", "")), str(run.get("config-text", "")))
    folder = coordinate(config, grid, Path(str(run.get("out", "runs"))), _tell)
    log(INFO, "finished: %s", folder.path)


def _tell(result: RoundResult) -> None:
    figures = ", ".join(f"{name} {value:.4f}" for name, value in (result.metrics or {}).items())
    log(INFO, "round %s: %s", result.round, result.skipped or figures or "done")
    for client, reason in result.dropped.items():
        log(INFO, "round %s: without %s (%s)", result.round, client, reason)
