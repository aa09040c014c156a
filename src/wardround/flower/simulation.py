"""Run a federation in Flower's simulation: virtual hospitals on one machine, through Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from wardround.errors import ConfigError, require
from wardround.flower.client_app import answer
from wardround.flower.config import FederationConfig
from wardround.flower.server.run import run_federation
from wardround.runs.folder import RunFolder
from wardround.runs.runner import Listener
from wardround.yaml_text import dump_yaml

__all__ = ["simulate"]


def simulate(
    config: FederationConfig, out: Path, workers: int = 2, listen: Listener | None = None
) -> RunFolder:
    """Run the federation in Flower's simulation and return its run folder; `workers` hospitals train at a time."""
    require("ray", "ray")
    from flwr.simulation import run_simulation

    if not config.has_partition:
        raise ConfigError("a simulation deals out the server's dataset: add dataset and partition")
    # Virtual nodes have no keys, and other numbers in every run.
    by_name = config.federation.model_copy(update={"identity": "name"})
    config = replace(config, federation=by_name)
    text = dump_yaml(config.plain())
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    @client_app.evaluate()
    @client_app.query()
    def work(message: Message, context: Context) -> Message:
        # A run's configuration cannot be changed: use a copy of the context that shares the node's state.
        run_config = {**context.run_config, "config-text": text}
        copy = Context(context.run_id, context.node_id, context.node_config, context.state, run_config)
        return answer(message, copy)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run_federation(config, grid, out, listen)

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
    }
    run_simulation(server_app, client_app, config.clients, backend_config=backend)  # type: ignore[arg-type]
    return config.find_folder(out)
