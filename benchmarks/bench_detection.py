"""What detection costs a round. How good it is, is in docs/results/fedbnp.md, by the presets `fedbnp-quality-*`.

`python benchmarks/bench_detection.py [--quick] [--json]` measures time and memory of `fedbnp` for a model of
1.2 million parameters and 20 clients. Detection runs on one thread, so the time is that of the processor, which
another load on the machine hardly touches. The Shapley values are timed apart (they evaluate models, which is
another cost), and so is the server's own training; both are made up here. Meant to stay: at most 1.5 seconds a
round beside those, times of practice shared out over the rounds between them, and memory below twice the update
matrix.
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
from typing import Any

import torch
from torch import Tensor

from wardround import Updates, aggregators, attacks
from wardround.aggregators.fedbnp import fingerprints, practice
from wardround.attacks import Knowledge
from wardround.randomness import torch_generator

CLIENTS, SECONDS, MEMORY = 20, 1.5, 2.0
RUN = 100
"""Rounds over which practice is shared out."""


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
    aggregators.create(
        "fedbnp", practice_groups=1, calm_groups=1, practice_draws=1
    ).aggregate(  # imports and first calls
        Updates(small.root_updates(1, CLIENTS)), 1, torch.zeros(500), practice_ground=small
    )
    updates = Updates(server.root_updates(0, CLIENTS, group=99))
    weights = torch.zeros(size)
    matrix_bytes, before = updates.matrix.nbytes, peak_bytes()
    rounds = []
    for number in range(1, repeats + 2):
        shapley.seconds = server.training = 0.0
        start = time.process_time()
        out = rule.aggregate(updates, number, weights, practice_ground=server)
        total = time.process_time() - start
        rounds.append(
            {"total": total, "shapley": shapley.seconds, "beside": total - shapley.seconds - server.training}
        )
    every = rule.params.learn_every
    practised = {0, every // 5, every // 2}  # and every `every` rounds from then on
    usual = statistics.median(line["beside"] for number, line in enumerate(rounds) if number not in practised)
    first, later = rounds[0]["beside"], rounds[every // 5]["beside"]
    times = len(practised) - 1 + (RUN - 1) // every
    return {
        "d": size,
        "clients": CLIENTS,
        "seconds_usual": usual,
        "seconds_first_practice": first,
        "seconds_practice": later,
        "seconds_a_round": (first + times * later + (RUN - 1 - times) * usual) / RUN,
        "seconds_shapley_without_evaluation": statistics.median(
            line["shapley"] for number, line in enumerate(rounds) if number not in practised
        ),
        "evaluations": int(out.columns["evaluations"][0]),
        "learn_every": every,
        "memory_over_matrix": (matrix_bytes + peak_bytes() - before) / matrix_bytes,
    }


def print_cost(line: dict[str, Any], judged: bool) -> None:
    def verdict(good: bool) -> str:
        return "" if not judged else "ok" if good else "missed"

    print(f"fedbnp, D = {line['d']:,}, {line['clients']} clients, float32")
    print(f"{'a usual round, beside Shapley':<52}{line['seconds_usual']:>8.2f} s")
    print(f"{'the first round, beside Shapley and training':<52}{line['seconds_first_practice']:>8.2f} s")
    print(f"{'a round with practice, beside Shapley and training':<52}{line['seconds_practice']:>8.2f} s")
    fine = verdict(line["seconds_a_round"] <= SECONDS)
    print(
        f"{f'a round, practice shared out over {RUN}':<52}{line['seconds_a_round']:>8.2f} s  target ≤ {SECONDS} {fine}"
    )
    text = f"Shapley's own arithmetic ({line['evaluations']} coalitions)"
    print(f"{text:<52}{line['seconds_shapley_without_evaluation']:>8.2f} s")
    fine = verdict(line["memory_over_matrix"] < MEMORY)
    print(
        f"{'memory, the matrix included':<52}{line['memory_over_matrix']:>8.2f} ×  target < {MEMORY} {fine}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the parameters, fewer repeats")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    line = measure_cost(120_000, 3) if arguments.quick else measure_cost(1_200_000, 7)
    if arguments.json:
        print(json.dumps(line))
    else:
        print_cost(line, judged=not arguments.quick)


if __name__ == "__main__":
    main()
