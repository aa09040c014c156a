"""Rounds of local training: wardround's engines against a plain PyTorch loop and Flower's simulation.

    python benchmarks/bench_training.py [--quick] [--no-flower] [--json FILE]

Contestants take turns in one run, so that whatever else the machine does meets all of them alike; the best
round of each counts. Those of one thread are measured by their thread's processor time, the others by the wall
clock. Every contestant trains the same clients on the same samples for the same number of steps and averages the
results; the mean training loss is printed to show it.
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
        return small_cnn(self.shape, self.classes) if len(self.shape) == 3 else mlp(self.shape[0])

    def params(self) -> TrainingParams:
        wish = {"optimizer": self.optimizer, "lr": self.lr, "batch_size": self.batch_size}
        return TrainingParams.model_validate(wish)

    def objective(self) -> Objective:
        return Objective(self.multi_class, unchanged)


TABLE = Workload(15_000, 20, True, (40,), 2, "adam", 0.001)
IMAGES = Workload(8_900, 10, False, (3, 28, 28), 9, "sgd", 0.01)
LARGE_IMAGES = Workload(2_560, 10, False, (3, 64, 64), 7, "sgd", 0.01, batch_size=64)


def unchanged(batch: Tensor) -> Tensor:
    return batch


def mlp(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The layers of `dos-cnn`, from torch's own modules."""
    side = ((shape[1] - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * side**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
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
    """The same with wardround; every call is a round of its own.

    `outcomes`: updates are split into the parts of so many outcomes.
    """

    def __init__(
        self,
        work: Workload,
        engine: str = "auto",
        workers: int | None = None,
        outcomes: int | None = None,
        precision: str = "float32",
    ) -> None:
        model = work.model()
        inputs, targets, rows = federation(work)
        self.data = [ClientData(inputs, own, targets[own]) for own in rows]
        params = work.params().model_copy(update={"precision": precision})
        self.trainer: Trainer = make_trainer(model, work.objective(), params, engine, "cpu", workers)
        self.outcomes = outcomes
        self.start = Layout.of(model).flatten(model.state_dict())
        self.shares = torch.tensor([len(own) / work.samples for own in rows])
        self.work, self.round = work, 0
        self.clock: Callable[[], float] = time.perf_counter
        self()  # a first round lays out data and starts workers

    def __call__(self) -> float:
        self.round += 1
        seeds = [seed_for(0, self.round, client) for client in range(len(self.data))]
        tasks = [
            ClientTask(f"hospital-{i}", data, seed)
            for i, (data, seed) in enumerate(zip(self.data, seeds, strict=True))
        ]
        started = self.clock()
        trained = self.trainer.train(self.start, tasks, self.work.lr, 0.0, self.outcomes)
        self.shares @ trained.matrix
        self.seconds = self.clock() - started
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


def timed(call: Callable[[], float], clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    started = clock()
    loss = call()
    return clock() - started, loss


def in_turns(
    work: Workload,
    repeats: int,
    ours: dict[str, OurRounds],
    plain_threads: tuple[int, ...],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds a round and the loss of each of ours, and of the plain loop on so many threads.

    Contestants that all run on one thread can be measured by the thread's own clock: whoever waits for the processor
    on a busy machine is not charged for it, and a short round has no better chance than a long one.
    """
    model = work.model()
    for rounds in ours.values():
        rounds.clock = clock
    seconds: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, rounds in ours.items():
            torch.set_num_threads(1)
            turn = time.perf_counter() + TURN_SECONDS
            while time.perf_counter() < turn:
                losses[name] = rounds()
                seconds.setdefault(name, []).append(rounds.seconds)
        for threads in plain_threads:
            torch.set_num_threads(threads)
            name = plain_label(threads)
            taken, losses[name] = timed(lambda: plain_round(work, model), clock)
            if repeat:  # the first one warms up
                seconds.setdefault(name, []).append(taken)
    for rounds in ours.values():
        rounds.trainer.close()
    return seconds, losses


def plain_label(threads: int) -> str:
    return f"plain PyTorch loop, {threads} thread{'s' if threads > 1 else ''}"


def rows_against_first(
    workload: str,
    seconds: dict[str, list[float]],
    losses: dict[str, float],
    first: str,
    wanted: dict[str, str],
) -> list[Row]:
    """A line per contestant, as multiples of the first one's best round."""
    mine = min(seconds[first])
    return [
        Row(workload, name, *against(seconds[name], mine), wanted.get(name, ""), losses[name])
        for name in [first, *(name for name in seconds if name != first)]
    ]


TABLE_NAME = "MLP 40-64-32-1, 20 unequal clients, 15,000 rows, Adam"


def table_rows(repeats: int, flower: bool) -> list[Row]:
    one = "wardround, fused, 1 thread"
    split = f"{one}, updates split by outcome"
    ours = {
        one: OurRounds(TABLE, "fused", workers=1),
        split: OurRounds(TABLE, "fused", workers=1, outcomes=2),
        "wardround, vectorized (no numba), 1 thread": OurRounds(TABLE, "vectorized"),
        "wardround, sequential, 1 thread": OurRounds(TABLE, "sequential"),
    }
    seconds, losses = in_turns(TABLE, repeats, ours, (1,), time.thread_time)
    rows = rows_against_first(TABLE_NAME, seconds, losses, one, {plain_label(1): "≥ 30", split: "≤ 1.3"})
    if CORES > 1:
        both = f"wardround, fused, {CORES} threads"
        all_cores = {both: OurRounds(TABLE, "fused", workers=CORES)}
        seconds, losses = in_turns(TABLE, repeats, all_cores, (CORES,))
        rows += rows_against_first(
            f"the same, {CORES} threads", seconds, losses, both, {plain_label(CORES): "≥ 50"}
        )
    if flower:
        result = flower_rounds(max(3, repeats))
        torch.set_num_threads(1)
        mine = rows[0].milliseconds / 1e3
        label = f"Flower's simulation, Ray, {CORES} cores"
        rows.append(Row(TABLE_NAME, label, *against(result["seconds"], mine), "≥ 20", result["loss"]))
        start = result["before_second_round"]
        rows.append(Row(TABLE_NAME, "… its start and first round", start * 1e3, start / mine, ""))
    return rows


def side_by_side_rows(repeats: int) -> list[Row]:
    """One of two processes that do the same at the same time, as the jobs of a matrix do, on one thread each."""
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {}
    losses: dict[str, float] = {}
    for name, contestant in (("wardround, fused", "fused"), ("plain PyTorch loop", "plain")):
        call = rounds_of(contestant)
        companion = subprocess.Popen(
            [sys.executable, __file__, "--companion", contestant], stdout=subprocess.PIPE, text=True
        )
        try:
            assert companion.stdout is not None
            companion.stdout.readline()  # it is at it
            for _ in range(repeats * (20 if contestant == "fused" else 1)):
                taken, losses[name] = timed(call, time.thread_time)
                seconds.setdefault(name, []).append(taken)
        finally:
            companion.kill()
            companion.wait()
    wanted = {"plain PyTorch loop": "≥ 30"}
    return rows_against_first(
        "the same MLP, two processes side by side", seconds, losses, "wardround, fused", wanted
    )


def rounds_of(contestant: str) -> Callable[[], float]:
    if contestant == "fused":
        return OurRounds(TABLE, "fused", workers=1)
    model = TABLE.model()
    return lambda: plain_round(TABLE, model)


def keep_company(contestant: str) -> None:
    """In a process of its own: round after round, until it is ended."""
    torch.set_num_threads(1)
    call = rounds_of(contestant)
    call()
    print("at it", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        call()


def image_rows(repeats: int) -> list[Row]:
    first = f"wardround, processes, {CORES} × 1 thread"
    ours = {
        first: OurRounds(IMAGES, "processes"),
        "wardround, sequential, 1 thread": OurRounds(IMAGES, "sequential"),
    }
    seconds, losses = in_turns(IMAGES, repeats, ours, tuple(sorted({1, CORES})))
    small = rows_against_first(
        "CNN 28×28×3, 10 clients × 890, SGD", seconds, losses, first, {plain_label(CORES): "≥ 1.6"}
    )
    half = f"{first}, precision auto"  # bf16 where the processor computes in it
    ours = {
        half: OurRounds(LARGE_IMAGES, "processes", precision="auto"),
        first: OurRounds(LARGE_IMAGES, "processes"),
    }
    seconds, losses = in_turns(LARGE_IMAGES, repeats, ours, (CORES,))
    name = f"CNN 64×64×3, 10 clients × 256, SGD, {ours[half].trainer.precision}"
    return small + rows_against_first(name, seconds, losses, half, {plain_label(CORES): "≥ 3"})


def scaling_rows(repeats: int) -> list[Row]:
    """The same samples in ever more hands; contestants take turns here too."""
    torch.set_num_threads(1)
    counts = (20, 200, 2_000)
    rounds = [OurRounds(Workload(15_000, n, True, (40,), 2, "adam", 0.001), workers=1) for n in counts]
    for ours in rounds:
        ours.clock = time.thread_time
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
    parser.add_argument(
        "--only", choices=("table", "processes", "images", "scaling"), help="one part of the table"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--flower-child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--companion", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flower_child:
        flower_child(given.flower_child)
        return
    if given.companion:
        keep_company(given.companion)
        return
    repeats = 2 if given.quick else 7
    parts: dict[str, Callable[[], list[Row]]] = {
        "table": lambda: table_rows(repeats, not given.no_flower),
        "processes": lambda: side_by_side_rows(repeats),
        "images": lambda: image_rows(repeats),
        "scaling": lambda: scaling_rows(repeats),
    }
    rows = [row for name, part in parts.items() if given.only in (None, name) for row in part()]
    show(rows)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
