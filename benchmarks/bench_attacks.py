"""What crafting costs: every attack, 4 of 20 clients, as a multiple of a plain mean over the matrix.

Run with `python benchmarks/bench_attacks.py [--quick] [--threads N] [--json]`. The closed-form attacks are
meant to stay within 5 times a mean at D = 1.2 M. On one thread (the default) the time is that of the
processor, which another load on the machine hardly touches; on more it is that of the clock. Each is the
best of several repeats, taken in turns with the mean it is compared with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from wardround import Aggregation, attacks
from wardround.attacks import Knowledge

CLIENTS, BYZANTINE, TARGET = 20, 4, 5.0
SEARCHING = {"agr-tailored", "fang-krum", "fang-trimmed-mean", "min-max", "min-sum", "profile-aware"}
"""Attacks with a search, order statistics or a Gram matrix: reported, but not held to the target."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "alie (match_norm)": ("alie", {"match_norm": True}),
    "ipm (match_norm)": ("ipm", {"match_norm": True}),
    "noise (of parameters)": ("noise", {"of": "parameters"}),
    "scaling (of parameters)": ("scaling", {"of": "parameters"}),
}
NO_ROWS = {"none", "label-flip", "backdoor", "score-lie"}  # these leave the update as it is


def seconds(call: Callable[[], object]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def measure(d: int, repeats: int) -> list[dict[str, Any]]:
    """One line an attack: milliseconds, and the multiple of a mean taken in the same turns."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(CLIENTS, d, generator=generator).mul_(0.01).add_(0.002)
    weights = torch.randn(d, generator=generator)
    own = matrix[:BYZANTINE].clone()
    members: dict[str, tuple[str, dict[str, Any]]] = {
        name: (name, {}) for name in attacks.available() if name not in NO_ROWS
    }
    lines = []
    for label, (name, params) in (members | VARIANTS).items():
        attack = attacks.create(name, **params)

        def rule(rows: torch.Tensor) -> Aggregation:
            return Aggregation(torch.cat([rows, matrix[BYZANTINE:]]).mean(0))

        def craft(turn: int, attack: attacks.Attack = attack) -> torch.Tensor:
            knowledge = Knowledge(
                round=turn,
                global_weights=weights,
                previous_global_weights=weights - matrix[7],
                honest=matrix,
                clients=tuple(f"client-{i:02d}" for i in range(BYZANTINE)),
                own_rows=tuple(range(BYZANTINE)),
                total_clients=CLIENTS,
                defence=rule,
            )
            return attack.craft(own, knowledge)

        for turn in (1, 2, 3):  # warm up, and give those that learn from the past some past
            craft(turn)
        means, crafts = [], []
        for turn in range(repeats):
            means.append(seconds(lambda: matrix.mean(0)))
            crafts.append(seconds(partial(craft, 4 + turn)))
        best = min(crafts)
        lines.append(
            {
                "attack": label,
                "ms": 1e3 * best,
                "times_mean": best / min(means),
                "held_to_target": name not in SEARCHING and name != "mix",
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the parameters, fewer repeats")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    d, repeats = (120_000, 5) if arguments.quick else (1_200_000, 15)
    lines = measure(d, repeats)
    if arguments.json:
        print(json.dumps({"d": d, "clients": CLIENTS, "byzantine": BYZANTINE, "attacks": lines}))
        return
    print(
        f"crafting for {BYZANTINE} of {CLIENTS} clients, D = {d:,}, float32, {torch.get_num_threads()} threads"
    )
    target = "" if arguments.quick else f"target ≤ {TARGET:g}"  # small matrices stay in the cache
    print(f"{'attack':<26}{'ms':>9}{'× mean':>9}  {target}")
    for line in sorted(lines, key=lambda line: line["times_mean"]):
        judged = line["held_to_target"] and not arguments.quick
        verdict = ("ok" if line["times_mean"] <= TARGET else "missed") if judged else ""
        print(f"{line['attack']:<26}{line['ms']:>9.2f}{line['times_mean']:>9.2f}  {verdict}".rstrip())


if __name__ == "__main__":
    main()
