"""What messages cost: the same rounds in process and over a Flower grid, and 200 clients in Flower's simulation.

    python benchmarks/bench_flower.py            # both
    python benchmarks/bench_flower.py --quick    # fewer rounds, 20 clients in the simulation
    python benchmarks/bench_flower.py --only messages    # or simulation

`messages` hands every message to the client app in the same process (no network, no process start), so that what
remains is the cost of messages, records and the audit log: processor seconds of one thread a round, as a multiple of
the in-process loop with the engine that trains one client after the other, as hospitals do. `simulation` runs
through Ray: seconds by the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from wardround.errors import MissingExtra
from wardround.flower.client_app import app
from wardround.flower.config import federation_from
from wardround.flower.inline_grid import InlineGrid
from wardround.flower.server.run import run_federation
from wardround.records import RoundRecord
from wardround.runs.config import load_config
from wardround.runs.runner import run

ICU: dict[str, Any] = {
    "dataset": {"name": "icu"},
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 1.0},
    "aggregator": {"name": "caac"},
    "evaluate_every": 1000,
}
MODELS = {"a small network": [64, 32], "1.2 million parameters": [1040, 1040]}
FEDERATION = {"identity": "name", "poll_seconds": 0.0}


class Watch:
    """Processor time at the end of each round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, result: RoundRecord) -> None:
        self.times.append(time.process_time())

    def seconds(self) -> float:
        """The least time between two rounds: others on the machine only ever make it longer."""
        return min(late - early for early, late in pairwise(self.times))


def in_process(values: dict[str, Any], engine: str, out: Path) -> float:
    """Seconds a round of the in-process loop."""
    watch = Watch()
    run(load_config({**values, "engine": engine}), out, watch)
    return watch.seconds()


def over_messages(values: dict[str, Any], out: Path) -> float:
    """Seconds a round over a grid in this process."""
    watch = Watch()
    text = yaml.safe_dump({**values, "engine": "sequential", "federation": FEDERATION})
    run_federation(federation_from(text), InlineGrid(app, 20, {"config-text": text}), out / "messages", watch)
    return watch.seconds()


def bench_messages(rounds: int) -> None:
    """In process against over messages."""
    print("| model | in process, s a round | over messages | multiple | vectorised in process |")
    print("|---|---|---|---|---|")
    for title, hidden in MODELS.items():
        values = {**ICU, "model": {"name": "mlp", "hidden": hidden}, "rounds": rounds}
        with tempfile.TemporaryDirectory() as folder:
            plain, batched = (
                in_process(values, engine, Path(folder)) for engine in ("sequential", "vectorized")
            )
            sent = over_messages(values, Path(folder))
        print(f"| {title} | {plain:.3f} | {sent:.3f} | {sent / plain:.2f}× | {batched:.3f} |", flush=True)


def bench_simulation(clients: int, rounds: int) -> None:
    """Many clients through Ray."""
    from wardround.flower.simulation import simulate

    partition = {"name": "dirichlet", "clients": clients, "alpha": 1.0}
    values = {**ICU, "partition": partition, "model": {"name": "mlp", "hidden": [64, 32]}, "rounds": rounds}
    config = federation_from({**values, "federation": {"poll_seconds": 0.1}})
    stamps: list[float] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = simulate(config, Path(folder), listen=lambda _: stamps.append(time.perf_counter()))
        summary = done.summary()
    total = time.perf_counter() - start
    each = (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)
    print(
        f"{clients} clients in Flower's simulation, {rounds} rounds: {summary.status}, "
        f"{stamps[0] - start:.0f} s to the end of the first round, {each:.1f} s a round after it, "
        f"{total:.0f} s in all; AUROC {summary.auroc:.3f}"
    )


def main() -> None:
    """Print the table and the line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["messages", "simulation"])
    options = parser.parse_args()
    if options.only != "simulation":
        bench_messages(3 if options.quick else 8)
    if options.only != "messages":
        try:
            bench_simulation(20 if options.quick else 200, 2 if options.quick else 5)
        except MissingExtra as missing:
            print(f"no simulation: {missing}")


if __name__ == "__main__":
    main()
