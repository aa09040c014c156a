"""Rounds of local training: wardround's engines against a plain PyTorch loop and Flower's simulation.

    python benchmarks/bench_training.py [--quick] [--no-flower] [--json FILE]

Contestants take turns in one run, so that whatever else the machine does meets all of them alike; the best
round of each counts. Every contestant trains the same clients on the same samples for the same number of steps and
averages the results; the mean training loss is printed to show it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from wardround.randomness import seed_for
from wardround.training import ClientData, ClientTask, Objective, Trainer, TrainingParams, make_trainer
from wardround.updates import Layout

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

TURN_SECONDS = 0.3
"""How long one of our engines is at it when its turn comes: short rounds are measured more often."""


@dataclass(frozen=True)
class Workload:
    """A federation and what its clients train."""

    samples: int
    clients: int
    power_law: bool
    shape: tuple[int, ...]
    classes: int
    optimizer: Literal["adam", "sgd"]
    lr: float
    batch_size: int = 32

    @property
    def multi_class(self) -> bool:
        return self.classes > 2

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return small_cnn(self.classes) if len(self.shape) == 3 else mlp(self.shape[0])

    def params(self) -> TrainingParams:
        wish = {"optimizer": self.optimizer, "lr": self.lr, "batch_size": self.batch_size}
        return TrainingParams.model_validate(wish)

    def objective(self) -> Objective:
        return Objective(self.multi_class, unchanged)


TABLE = Workload(15_000, 20, True, (40,), 2, "adam", 0.001)
IMAGES = Workload(8_900, 10, False, (3, 28, 28), 9, "sgd", 0.01)


def unchanged(batch: Tensor) -> Tensor:
    return batch


def mlp(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def small_cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


@functools.cache
def federation(work: Workload) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Samples, targets and the rows of each client."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(work.samples, *work.shape, generator=generator)
    signal = inputs.flatten(1)[:, :5].sum(1)
    if work.multi_class:
        targets = (
            ((signal - signal.min()) / (signal.max() - signal.min()) * (work.classes - 1)).round().long()
        )
    else:
        targets = (signal + torch.randn(work.samples, generator=generator) > 0).long()
    shares = np.arange(1, work.clients + 1) ** (-1.0 if work.power_law else 0.0)
    sizes = 1 + np.floor((work.samples - work.clients) * shares / shares.sum()).astype(int)
    sizes[: work.samples - sizes.sum()] += 1
    rows = torch.randperm(work.samples, generator=generator).split(sizes.tolist())
    return inputs, targets, rows


def train_plainly(
    model: nn.Module, inputs: Tensor, targets: Tensor, work: Workload, rows: Tensor
) -> tuple[dict[str, Tensor], float]:
    """One client as a tutorial would train it; weights and mean loss."""
    model = copy.deepcopy(model).train()
    loader = DataLoader(TensorDataset(inputs[rows], targets[rows]), batch_size=work.batch_size, shuffle=True)
    kind = torch.optim.Adam if work.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=work.lr)
    loss_of = work.objective().loss
    total = 0.0
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(batch), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    return model.state_dict(), total / len(rows)


def plain_round(work: Workload, model: nn.Module) -> float:
    """All clients in turn, then their weighted mean; the mean loss over samples."""
    inputs, targets, rows = federation(work)
    trained = [train_plainly(model, inputs, targets, work, own) for own in rows]
    sizes = [len(own) / work.samples for own in rows]
    for name in model.state_dict():
        sum(size * state[name] for size, (state, _) in zip(sizes, trained, strict=True))
    return sum(size * loss for size, (_, loss) in zip(sizes, trained, strict=True))


class OurRounds:
    """The same with wardround; every call is a round of its own."""

    def __init__(self, work: Workload, engine: str = "auto") -> None:
        model = work.model()
        inputs, targets, rows = federation(work)
        self.data = [ClientData(inputs, own, targets[own]) for own in rows]
        self.trainer: Trainer = make_trainer(model, work.objective(), work.params(), engine, "cpu")
        self.start = Layout.of(model).flatten(model.state_dict())
        self.shares = torch.tensor([len(own) / work.samples for own in rows])
        self.work, self.round = work, 0
        self()  # a first round lays out data and starts workers

    def __call__(self) -> float:
        self.round += 1
        seeds = [seed_for(0, self.round, client) for client in range(len(self.data))]
        tasks = [
            ClientTask(f"hospital-{i}", data, seed)
            for i, (data, seed) in enumerate(zip(self.data, seeds, strict=True))
        ]
        started = time.perf_counter()
        trained = self.trainer.train(self.start, tasks, self.work.lr, 0.0)
        self.shares @ trained.matrix
        self.seconds = time.perf_counter() - started
        return float(self.shares.double() @ trained.loss)


def flower_rounds(rounds: int) -> dict[str, Any]:
    """Flower's simulation (Ray) of the table workload, in a process of its own: seconds and loss a round."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--flower-child", str(rounds)],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"Flower's simulation failed:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def flower_child(rounds: int) -> None:
    """Inside that process: a ServerApp with FedAvg and a ClientApp that trains plainly."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    begun = time.perf_counter()
    client_app, server_app = ClientApp(), ServerApp()
    folder = str(Path(__file__).resolve().parent)
    times: list[float] = []
    losses: list[Any] = []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        import bench_training  # in the actor: data are made once and kept, as a careful user would do

        torch.set_num_threads(1)
        work = bench_training.TABLE
        inputs, targets, rows = bench_training.federation(work)
        own = rows[int(context.node_config["partition-id"])]
        model = work.model()
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        state, loss = bench_training.train_plainly(model, inputs, targets, work, own)
        metrics = MetricRecord({"loss": loss, "num-examples": len(own)})
        return Message(
            content=RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message
        )

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        def stamp(round: int, arrays: ArrayRecord) -> MetricRecord:
            times.append(time.perf_counter())
            return MetricRecord({"round": round})

        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=TABLE.clients)
        result = strategy.start(
            grid, ArrayRecord(TABLE.model().state_dict()), num_rounds=rounds + 1, evaluate_fn=stamp
        )
        losses.extend(metrics["loss"] for metrics in result.train_metrics_clientapp.values())

    run_simulation(
        server_app,
        client_app,
        num_supernodes=TABLE.clients,
        backend_config={
            "init_args": {"num_cpus": CORES, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )
    seconds = np.diff(times).tolist()
    # The first round starts the actors; it is told apart.
    print(json.dumps({"seconds": seconds[1:], "before_second_round": times[1] - begun, "loss": losses[0]}))


@dataclass(frozen=True)
class Row:
    """A line of the table: who, how long, and against whom."""

    workload: str
    contestant: str
    milliseconds: float
    ratio: float
    wanted: str
    loss: float | None = None


def timed(call: Callable[[], float]) -> tuple[float, float]:
    started = time.perf_counter()
    loss = call()
    return time.perf_counter() - started, loss


def in_turns(
    work: Workload, repeats: int, engines: tuple[str, ...]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds a round and the loss of: each of our engines, and the plain loop on one thread and on all."""
    ours = {engine: OurRounds(work, engine) for engine in engines}
    model = work.model()
    seconds: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, rounds in ours.items():
            torch.set_num_threads(1)
            turn = time.perf_counter() + TURN_SECONDS
            while time.perf_counter() < turn:
                losses[name] = rounds()
                seconds.setdefault(name, []).append(rounds.seconds)
        for threads in sorted({1, CORES}):
            torch.set_num_threads(threads)
            taken, losses[f"plain {threads}"] = timed(lambda: plain_round(work, model))
            if repeat:  # the first one warms up
                seconds.setdefault(f"plain {threads}", []).append(taken)
    for rounds in ours.values():
        rounds.trainer.close()
    return seconds, losses


def table_rows(repeats: int, flower: bool) -> list[Row]:
    name = "MLP 40-64-32-1, 20 unequal clients, 15,000 rows, Adam"
    seconds, losses = in_turns(TABLE, repeats, ("vectorized", "sequential"))
    if flower:
        result = flower_rounds(max(3, repeats))
        torch.set_num_threads(1)
        ours = OurRounds(TABLE, "vectorized")  # another turn after Flower's, so that it stands between two
        for _ in range(4 * repeats):
            ours()
            seconds["vectorized"].append(ours.seconds)
    mine = min(seconds["vectorized"])
    labels = {
        "vectorized": ("wardround, vectorized, 1 thread", ""),
        "sequential": ("wardround, sequential, 1 thread", ""),
        **plain_labels("≥ 10", "≥ 10"),
    }
    rows = [
        Row(name, label, *against(seconds[key], mine), wanted, losses[key])
        for key, (label, wanted) in labels.items()
    ]
    if flower:
        label = f"Flower's simulation, Ray, {CORES} cores"
        rows.append(Row(name, label, *against(result["seconds"], mine), "≥ 20", result["loss"]))
        start = result["before_second_round"]
        rows.append(Row(name, "… its start and first round", start * 1e3, start / mine, ""))
    return rows


def image_rows(repeats: int) -> list[Row]:
    name = "CNN 28×28×3, 10 clients × 890, SGD"
    seconds, losses = in_turns(IMAGES, repeats, ("processes", "sequential"))
    mine = min(seconds["processes"])
    labels = {
        "processes": (f"wardround, processes, {CORES} × 1 thread", ""),
        "sequential": ("wardround, sequential, 1 thread", ""),
        **plain_labels("", "≥ 1.6"),
    }
    return [
        Row(name, label, *against(seconds[key], mine), wanted, losses[key])
        for key, (label, wanted) in labels.items()
    ]


def plain_labels(alone: str, all_cores: str) -> dict[str, tuple[str, str]]:
    """The plain loops' names in the table and what is wanted of us against them."""
    labels = {"plain 1": ("plain PyTorch loop, 1 thread", alone)}
    if CORES > 1:
        labels[f"plain {CORES}"] = (f"plain PyTorch loop, {CORES} threads", all_cores)
    return labels


def scaling_rows(repeats: int) -> list[Row]:
    """The same samples in ever more hands; contestants take turns here too."""
    torch.set_num_threads(1)
    counts = (20, 200, 2_000)
    rounds = [OurRounds(Workload(15_000, n, True, (40,), 2, "adam", 0.001)) for n in counts]
    seconds: list[list[float]] = [[] for _ in counts]
    for _ in range(4 * repeats):
        for taken, ours in zip(seconds, rounds, strict=True):
            ours()
            taken.append(ours.seconds)
    first = min(seconds[0])
    return [
        Row(
            "the MLP's 15,000 rows in more hands",
            f"{n:,} clients",
            *against(taken, first),
            "" if n == 20 else "≤ 3",
        )
        for n, taken in zip(counts, seconds, strict=True)
    ]


def against(seconds: list[float], mine: float) -> tuple[float, float]:
    """Milliseconds of the best round, the one least disturbed, and how many of ours that is."""
    return min(seconds) * 1e3, min(seconds) / mine


def show(rows: list[Row]) -> None:
    print("| workload | contestant | a round, ms | ratio | wanted | mean loss |\n|---|---|--:|--:|--:|--:|")
    for row in rows:
        loss = "" if row.loss is None else f"{row.loss:.3f}"
        print(
            f"| {row.workload} | {row.contestant} | {row.milliseconds:,.1f} | {row.ratio:.2f} | {row.wanted} | {loss} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a few repeats only")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower's simulation out")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--flower-child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flower_child:
        flower_child(given.flower_child)
        return
    repeats = 2 if given.quick else 7
    rows = [*table_rows(repeats, not given.no_flower), *image_rows(repeats), *scaling_rows(repeats)]
    show(rows)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
