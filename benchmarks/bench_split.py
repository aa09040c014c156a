"""Speed of rules on updates that are split by outcome: `python benchmarks/bench_split.py`.

`× floor` is the CPU time of one thread, the check of rows and parts included, as a multiple of a plain weighted mean of
all parts (one pass over the split matrix), measured in turns with the rule. `caac-guard` should stay below 8.

    --clients N …    20 by default
    --outcomes C …   2 by default
    --dimension D    1,200,000 by default
    --rules NAME …   some of the rules only
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from wardround import Updates, aggregators
from wardround.updates import Layout, Parts

RULES = {"caac-guard": {}, "rfa": {"strata": True}, "median": {"strata": True}}
GOALS = {"caac-guard": 8}
INPUTS, REPEATS = 32, 6


def made_up(clients: int, outcomes: int, dimension: int) -> Callable[[], Updates]:
    """A way to wrap the same updates again: outcomes that push against each other, and noise."""
    generator = torch.Generator().manual_seed(0)
    outputs = 1 if outcomes == 2 else outcomes
    rows = torch.empty(clients, outcomes, dimension)
    for i in range(clients):
        for c in range(outcomes):
            rows[i, c].normal_(1.0 if c else -1.0, 1.0, generator=generator).mul_(1e-3)
    shapes = ((dimension - (INPUTS + 1) * outputs,), (outputs, INPUTS), (outputs,))
    layout = Layout(("hidden", "output.weight", "output.bias"), shapes)
    biases = rows[:, :, dimension - outputs :]
    for c in range(outcomes):  # every outcome raises its own logit
        own = biases[:, c, 0 if outputs == 1 else c]
        own.abs_().mul_(-1.0 if outputs == 1 and c == 0 else 1.0)
    parts = Parts(rows, torch.full((clients, outcomes), 50.0, dtype=torch.float64))
    matrix = parts.sums()
    return lambda: Updates(matrix, layout=layout, parts=parts)


def least_time(function: Callable[[], object], repeats: int = 3) -> float:
    """Milliseconds of this process."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, 1000 * (time.process_time() - start))
    return best


def measure(name: str, make: Callable[[], Updates]) -> tuple[float, float]:
    """Milliseconds of a round, and how many passes over the split matrix that is."""
    rule = aggregators.create(name, **RULES[name])
    parts = make().parts
    assert parts is not None
    rows = parts.rows.flatten(0, 1)
    shares = torch.full((len(rows),), 1 / len(rows))
    for t in (1, 2):  # compiles, and gives the rule a past
        rule.aggregate(make(), t)
    own, floor = float("inf"), float("inf")
    for _ in range(REPEATS):
        floor = min(floor, least_time(lambda: shares @ rows))
        own = min(own, least_time(lambda: rule.aggregate(make(), 3)))
    return own, own / floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20])
    parser.add_argument("--outcomes", type=int, nargs="+", default=[2])
    parser.add_argument("--dimension", type=int, default=1_200_000)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| rule | clients × outcomes × parameters | goal | ms (CPU, 1 thread) | × floor |\n|---|---|---:|---:|---:|"
    )
    for clients in options.clients:
        for outcomes in options.outcomes:
            make = made_up(clients, outcomes, options.dimension)
            for name in options.rules:
                milliseconds, passes = measure(name, make)
                goal = f"≤ {GOALS[name]}" if name in GOALS else ""
                shape = f"{clients} × {outcomes} × {options.dimension:,}"
                print(f"| `{name}` | {shape} | {goal} | {milliseconds:.1f} | {passes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
