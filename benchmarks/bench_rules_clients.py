"""How a rule's time grows with the number of clients: `python benchmarks/bench_rules_clients.py`.

Every rule from 2 to 2,000 clients, with compiled code (numba) and without, beside the plain way to write the same rule
in torch, numpy and scikit-learn (`benchmarks/plain_rules.py`). CPU time of one thread, rule and plain way in turns, the
best of all calls. Updates have 100,000 parameters, 10,000 from 1,000 clients on; the plot, which gives times per value
of the matrix, does not show that. What took more than `PATIENCE` is not measured with more clients.

    --clients N …       other numbers of clients
    --rules NAME …      some rules only
    --quick             2, 20, 128, 129 and 200 clients, 10,000 parameters
    --keep FILE         add what is measured to what an earlier run left there (JSON), and print all of it
    --plot FILE         draw time per value over the number of clients (needs matplotlib), as in docs/rules.md
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_rules import made_up, rules, works_with
from plain_rules import PLAIN
from threadpoolctl import threadpool_limits

from wardround import aggregators
from wardround.aggregators._math import compiled

CLIENTS = [2, 20, 100, 128, 129, 200, 500, 1000, 2000]
PATIENCE = 2.0
"""Seconds."""
CALLS, ENOUGH = 4, 0.2
"""Calls of each at most, after a first that does not count, and seconds after which no further ones are made."""
SAME_AS = {"fedprox": "fedavg", "fedbn": "fedavg", "fedmed": "fedavg"}
"""Rules that do the same work as another."""
DRAWN = [
    "mean",
    "median",
    "trimmed-mean",
    "meamed",
    "krum",
    "bulyan",
    "rfa",
    "fltrust",
    "foolsgold",
    "signguard",
    "lasa",
]

Times = dict[str, dict[int, tuple[float, float | None]]]
"""Rule → clients → (seconds, seconds of the plain way)."""
SIDES = {"with numba": compiled._loops, "without numba": lambda: None}


def dimension(clients: int, quick: bool) -> int:
    return 10_000 if quick or clients >= 1000 else 100_000


def seconds(function: Callable[..., Any], *given: Any, **named: Any) -> float:
    start = time.process_time()
    function(*given, **named)
    return time.process_time() - start


def measure(
    name: str, clients: int, quick: bool, sides: Sequence[str], with_plain: bool
) -> dict[str, float] | None:
    """Seconds of the rule on each side and of the plain way, in turns; None where the rule needs more clients."""
    make, extra = rounds(clients, dimension(clients, quick))
    if not works_with(name, clients):
        return None
    weights, step = extra["global_weights"], extra["root_update"]
    own = {side: aggregators.create(name) for side in sides}
    best = dict.fromkeys([*sides, *(["plain"] if with_plain else [])], math.inf)
    start = time.process_time()
    for call in range(1 + CALLS):
        # The model moves: rules that look at that have something to see.
        given = {**extra, "global_weights": weights + 1e-3 * call * step}
        for side in best:
            compiled._loops = SIDES.get(side, compiled._loops)  # type: ignore[assignment]
            if side == "plain":
                took = seconds(PLAIN[name], make().matrix, given)
            else:
                took = seconds(own[side].aggregate, make(), 3, **given)
            if call > 0 or took > PATIENCE:  # the first compiles, and gives a past to rules that have one
                best[side] = min(best[side], took)
        if time.process_time() - start > ENOUGH and math.inf not in best.values():
            break
    return best


@functools.lru_cache(maxsize=1)
def rounds(clients: int, columns: int) -> Any:
    return made_up(clients, columns)


def sweep(
    names: Sequence[str], numbers: Sequence[int], quick: bool, sides: Sequence[str]
) -> dict[str, Times]:
    """Side → times."""
    found: dict[str, Times] = {side: {name: {} for name in names} for side in sides}
    too_slow: set[tuple[str, str]] = set()
    for clients in numbers:
        print(f"{clients:,} clients …", file=sys.stderr, flush=True)
        for name in names:
            fit = [side for side in sides if (name, side) not in too_slow]
            plain = name in PLAIN and (name, "plain") not in too_slow
            times = measure(name, clients, quick, fit, plain) if fit else None
            for side, took in (times or {}).items():
                if side != "plain":
                    found[side][name][clients] = took, times.get("plain") if times else None
                if took > PATIENCE:
                    too_slow.add((name, side))
    return found


def together(tables: dict[str, Times], file: Path) -> tuple[dict[str, Times], list[int]]:
    """What was measured and what the file holds of earlier runs, kept there; and all numbers of clients in it."""
    for side, rule_times in (json.loads(file.read_text()) if file.exists() else {}).items():
        for name, times in rule_times.items():
            own = tables.setdefault(side, {}).setdefault(name, {})
            for clients, (seconds_of_rule, seconds_of_plain) in times.items():
                own.setdefault(int(clients), (seconds_of_rule, seconds_of_plain))
    tables = {
        side: {name: dict(sorted(found[name].items())) for name in sorted(found)}
        for side, found in tables.items()
    }
    file.write_text(json.dumps(tables))
    return tables, sorted({n for found in tables.values() for times in found.values() for n in times})


def print_table(title: str, found: Times, numbers: Sequence[int]) -> None:
    """Milliseconds, and in brackets how many times faster than the plain way."""
    print(f"\n**{title}**\n")
    print("| rule | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    print("|---|" + "---:|" * len(numbers))
    for name, times in found.items():
        cells = []
        for n in numbers:
            own, plain = times.get(n, (None, None))
            cell = "" if own is None else f"{1000 * own:.{1 if own < 0.1 else 0}f}"
            cells.append(cell + (f" ({plain / own:.1f}×)" if own and plain else ""))
        print(f"| `{name}` | " + " | ".join(cells) + " |", flush=True)


def print_verdict(found: Times, quick: bool) -> None:
    """Where a rule is slower than the plain way, and the steepest growth between neighbouring sizes."""
    slower = [
        f"`{name}` at {n:,} ({own / plain:.2f} times as long)"
        for name, times in found.items()
        for n, (own, plain) in times.items()
        if plain is not None and own > 1.05 * plain
    ]
    print(f"\nSlower than the plain way by more than 5 %: {', '.join(slower) or 'nowhere'}.")
    for before, after in ((128, 129), (500, 1000)):
        growth = {
            name: (times[after][0] / dimension(after, quick)) / (times[before][0] / dimension(before, quick))
            for name, times in found.items()
            if before in times and after in times
        }
        if growth:
            steepest = max(growth, key=lambda name: growth[name])
            print(
                f"From {before} to {after} clients, per parameter: at most ×{growth[steepest]:.1f} (`{steepest}`)."
            )


def draw(sides: dict[str, Times], path: Path, quick: bool) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "rules"
    figure, axes = pyplot.subplots(1, len(sides), figsize=(10, 4.2), sharey=True, squeeze=False)
    for axis, (title, found) in zip(axes[0], sides.items(), strict=True):
        for place, name in enumerate(name for name in DRAWN if name in found):
            points = [(n, 1e9 * own / n / dimension(n, quick)) for n, (own, _) in found[name].items()]
            style = ("-", "--", ":")[place // 10 % 3]
            axis.plot(*zip(*points, strict=True), style, marker=".", label=name, linewidth=1.2)
        axis.set(xscale="log", yscale="log", xlabel="clients", title=title)
        axis.axvline(128.5, color="0.8", linewidth=0.8, zorder=0)
        axis.grid(alpha=0.2)
    axes[0][0].set_ylabel("ns per value of the matrix, one thread")
    axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--rules", nargs="+", default=())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if unknown := set(options.rules) - set(rules()):
        parser.error(f"no such rule here: {', '.join(sorted(unknown))}; there are {', '.join(rules())}")
    torch.set_num_threads(1)
    names = [name for name in rules(options.rules) if name not in SAME_AS]
    numbers = options.clients or ([2, 20, 128, 129, 200] if options.quick else CLIENTS)
    real = compiled._loops
    sides = [side for side, loops in SIDES.items() if loops() is not None or side == "without numba"]
    with threadpool_limits(1):  # numpy's products have threads of their own
        tables = sweep(names, numbers, options.quick, sides)
    compiled._loops = real  # type: ignore[assignment]
    if options.keep:
        tables, numbers = together(tables, options.keep)
    small = "10,000 parameters" if options.quick else "100,000 parameters, 10,000 from 1,000 clients on"
    for title, found in tables.items():
        print_table(f"{title}: ms (times faster than the plain way), {small}", found, numbers)
        print_verdict(found, options.quick)
    if options.plot:
        draw(tables, options.plot, options.quick)


if __name__ == "__main__":
    main()
