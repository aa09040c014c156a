"""What detection costs a round, and how good it is.

`python benchmarks/bench_detection.py [--quick] [--json]` measures time and memory of `fedbnp` for a model of
1.2 million parameters and 20 clients. Detection runs on one thread, so the time is that of the processor, which
another load on the machine hardly touches. The Shapley values are timed apart (they evaluate models, which is
another cost), and so is the server's own training; both are made up here. Meant to stay: at most 1.5 seconds a
round beside those, times of practice shared out over the rounds between them, and memory below twice the update
matrix.

`python benchmarks/bench_detection.py --quality [--dataset icu|pneumonia] [--first-seed 3] [--seeds 3]` runs the
FedBNP document's five attacks with 30 % Byzantine clients and prints precision, recall, F1 and FPR.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wardround import Updates, aggregators, attacks
from wardround.attacks import Knowledge
from wardround.detection import fingerprints, practice
from wardround.randomness import torch_generator

CLIENTS, SECONDS, MEMORY = 20, 1.5, 2.0
ROOT = 200
QUALITY_ATTACKS: dict[str, dict[str, Any]] = {
    "scaling": {"name": "scaling"},
    "partial-scaling": {"name": "partial-scaling"},
    "sign-flip": {"name": "sign-flip", "scale": 1.0},
    "additive-noise": {"name": "additive-noise"},
    "label-flip": {"name": "label-flip"},
    "none": {"name": "none"},
}
MEDMNIST = Path(__file__).parents[2] / "shared" / "data" / "medmnist" / "pneumoniamnist.npz"


class MadeUpServer:
    """Random honest rows, attacks of the library on them, and a value that costs nothing."""

    seed, rounds = 0, 100
    attacks = ("scaling", "partial-scaling", "sign-flip", "additive-noise", "noise", "alie", "ipm")

    def __init__(self, size: int) -> None:
        self.size = size
        self.direction = 0.002 * torch.randn(size, generator=torch_generator(0, "direction"))
        self.training = 0.0

    def reference(self, round: int, group: int | None = None, draw: int = 0) -> Tensor:
        return self.direction

    def root_updates(
        self, round: int, count: int, group: int = 0, draw: int = 0, sizes: Sequence[int] | None = None
    ) -> Tensor:
        start = time.process_time()
        generator = torch_generator(0, round, group, draw)
        rows = torch.randn(count, self.size, generator=generator).mul_(0.005).add_(self.direction)
        self.training += time.process_time() - start
        return rows

    def plant(
        self,
        honest: Tensor,
        attack: str,
        round: int,
        group: int = 0,
        draw: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        byzantine = torch.arange(len(honest)) < 2
        knowledge = Knowledge(round, honest=honest, own_rows=(0, 1), total_clients=len(honest), seed=draw)
        return byzantine, attacks.create(attack).craft(honest[byzantine], knowledge)

    def value(self, weights: Tensor) -> Tensor:
        return torch.sigmoid(weights[:, :1000].sum(1))


class Stopwatch:
    """Adds up the time spent in a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.process_time() - start

        return timed


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_cost(size: int, repeats: int) -> dict[str, Any]:
    """Seconds of a usual round and of one with practice, beside Shapley; memory beside the matrix."""
    shapley = Stopwatch()
    fingerprints.monte_carlo_shapley = shapley.around(fingerprints.monte_carlo_shapley)  # type: ignore[assignment]
    practice.Practice._gains = shapley.around(practice.Practice._gains)  # type: ignore[method-assign]
    server, rule = MadeUpServer(size), aggregators.create("fedbnp")
    small = MadeUpServer(500)
    aggregators.create("fedbnp", practice_groups=1, practice_draws=1).aggregate(  # imports and first calls
        Updates(small.root_updates(1, CLIENTS)), 1, torch.zeros(500), server=small
    )
    updates = Updates(server.root_updates(0, CLIENTS, group=99))
    weights = torch.zeros(size)
    matrix_bytes, before = updates.matrix.nbytes, peak_bytes()
    rounds = []
    for number in range(1, repeats + 2):
        shapley.seconds = server.training = 0.0
        start = time.process_time()
        out = rule.aggregate(updates, number, weights, server=server)
        total = time.process_time() - start
        rounds.append(
            {"total": total, "shapley": shapley.seconds, "beside": total - shapley.seconds - server.training}
        )
    every = rule.params.learn_every
    usual = statistics.median(line["beside"] for line in rounds[1:])
    with_practice = rounds[0]["beside"]
    return {
        "d": size,
        "clients": CLIENTS,
        "seconds_usual": usual,
        "seconds_practice": with_practice,
        "seconds_a_round": (with_practice + (every - 1) * usual) / every,
        "seconds_shapley_without_evaluation": statistics.median(line["shapley"] for line in rounds[1:]),
        "evaluations": int(out.columns["evaluations"][0]),
        "learn_every": every,
        "memory_over_matrix": (matrix_bytes + peak_bytes() - before) / matrix_bytes,
    }


def print_cost(line: dict[str, Any], judged: bool) -> None:
    def verdict(good: bool) -> str:
        return "" if not judged else "ok" if good else "missed"

    print(f"fedbnp, D = {line['d']:,}, {line['clients']} clients, float32")
    print(f"{'a usual round, beside Shapley':<52}{line['seconds_usual']:>8.2f} s")
    print(f"{'a round with practice, beside Shapley and training':<52}{line['seconds_practice']:>8.2f} s")
    fine = verdict(line["seconds_a_round"] <= SECONDS)
    print(f"{'a round, practice shared out':<52}{line['seconds_a_round']:>8.2f} s  target ≤ {SECONDS} {fine}")
    text = f"Shapley's own arithmetic ({line['evaluations']} coalitions)"
    print(f"{text:<52}{line['seconds_shapley_without_evaluation']:>8.2f} s")
    fine = verdict(line["memory_over_matrix"] < MEMORY)
    print(
        f"{'memory, the matrix included':<52}{line['memory_over_matrix']:>8.2f} ×  target < {MEMORY} {fine}"
    )


def quality_config(dataset: str, attack: dict[str, Any], rule: str, rounds: int, seed: int) -> dict[str, Any]:
    sets: dict[str, dict[str, Any]] = {
        "icu": {"dataset": {"name": "icu"}, "model": {"name": "mlp"}},
        "pneumonia": {
            "dataset": {"name": "medmnist", "file": str(MEDMNIST)},
            "model": {"name": "medical-cnn"},
            "training": {"optimizer": "sgd", "lr": 0.01},
        },
    }
    return {
        **sets[dataset],
        "partition": {"name": "dirichlet", "clients": CLIENTS, "alpha": 0.5},
        "aggregator": {"name": rule},
        "attack": {**attack, "fraction": 0.0 if attack["name"] == "none" else 0.3},
        "rounds": rounds,
        "root": {"samples": ROOT},
        "evaluate_every": rounds,
        "seed": seed,
    }


def measure_quality(
    dataset: str, rule: str, names: list[str], seeds: range, rounds: int, overrides: dict[str, Any]
) -> None:
    """Print a line an attack: means over the seeds of detection and of the final test AUROC and accuracy."""
    from wardround.experiments.config import load_config
    from wardround.experiments.runner import build
    from wardround.experiments.summary import detection

    torch.set_num_threads(1)
    for name in names:
        attack, found = QUALITY_ATTACKS[name], []
        for seed in seeds:
            config = quality_config(dataset, attack, rule, rounds, seed)
            config["aggregator"] |= overrides
            federation = build(load_config(config))
            with federation.trainer:
                told = [federation.step(number) for number in range(1, rounds + 1)]
            rates = detection([line for each in told for line in each.clients], "flag")
            assert rates is not None
            judged = told[-1].metrics or {}
            found.append({**rates, "auroc": judged["auroc"], "accuracy": judged["accuracy"]})
        figures = [
            _mean([line[key] for line in found], digits)
            for key, digits in (
                ("precision", 2),
                ("recall", 2),
                ("f1", 2),
                ("fpr", 2),
                ("auroc", 3),
                ("accuracy", 3),
            )
        ]
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


def _mean(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known):.{digits}f}" if known else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the parameters, fewer repeats")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quality", action="store_true", help="how good instead of how fast")
    parser.add_argument("--dataset", choices=["icu", "pneumonia"], default="icu")
    parser.add_argument("--rule", default="fedbnp-sharp")
    parser.add_argument("--attacks", default=",".join(QUALITY_ATTACKS), help="some of them, with commas")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=3, help="0 and 1 were used to set the detector up")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the rule"
    )
    arguments = parser.parse_args()
    if arguments.quality:
        overrides = {key: json.loads(value) for key, value in (item.split("=") for item in arguments.set)}
        print(
            f"{arguments.rule} on {arguments.dataset}: {arguments.seeds} seeds from {arguments.first_seed}, "
            f"{arguments.rounds} rounds"
        )
        print("| attack | precision | recall | F1 | FPR | AUROC | accuracy |\n|---|---|---|---|---|---|---|")
        names = arguments.attacks.split(",")
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        measure_quality(arguments.dataset, arguments.rule, names, seeds, arguments.rounds, overrides)
        return
    torch.set_num_threads(1)
    line = measure_cost(120_000, 3) if arguments.quick else measure_cost(1_200_000, 7)
    if arguments.json:
        print(json.dumps(line))
    else:
        print_cost(line, judged=not arguments.quick)


if __name__ == "__main__":
    main()
