"""Speed and memory of every aggregation rule, beside ByzFL and Flower: `python benchmarks/bench_rules.py`.

`× floor` is the time of a rule, the check of the rows included, as a multiple of a plain weighted mean (a matrix–vector
product: as fast as the memory can be read), measured beside it in the same run. The peers run in an environment
of their own under `.bench/`, made on first use.

Both the clock, with two threads, and the CPU time of one thread, which is what to trust on a machine that is busy.
Rule and floor are measured in turns and the best of all counts, so that others who use the machine distort little.

    --clock wall|cpu    one of the two only
    --clients N …       20 and 50 by default
    --rules NAME …      some rules only, or some "RULE behind STEP"
    --no-peers          without ByzFL and Flower
    --quick             one small size, few repeats
    --memory            peak memory beyond the matrix instead of time (--clients, --dimension; default 20 × 20 M)
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from wardround import Updates, aggregators
from wardround.errors import WardroundError

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".bench" / "peers"
GOALS = {
    "median": 4, "trimmed-mean": 4, "krum": 8, "multi-krum": 8, "rfa": 8, "dos": 8, "caac": 4, "fltrust": 5,
    "bulyan": 20, "rlr": 8, "meamed": 8, "dnc": 8, "flame": 8, "foolsgold": 8, "deepsight": 8, "norm-clipping": 8,
    "caf": 8, "signguard": 8, "fldetector": 8, "caac-guard": 6, "mda": 8, "smea": 8, "monna": 8,
}  # fmt: skip
PIPELINES = {
    "trimmed-mean behind nnm": 6,
    "krum behind nnm": 8,
    "krum behind clipping": 8,
    "median behind bucketing": 6,
}
"""Rules behind a pre-aggregation that are timed with the others, and their goals: two passes more than the rule's own
where it looks at coordinates, none where the Gram matrix is enough."""
ABLATIONS = {"caac-mag", "caac-dir", "caac-temp", "caac-mag+dir"}


def rules(chosen: Sequence[str] = ()) -> list[str]:
    """All (or the chosen) but those that train on the server's own data (timed with their training) and ablations."""
    return [
        name
        for name in aggregators.available()
        if not aggregators.registry.get(name).needs_practice_ground
        and name not in ABLATIONS
        and (not chosen or name in chosen)
    ]


def create(name: str) -> aggregators.Aggregator:
    """A rule by name, or one "behind" a pre-aggregation. Clipping is to a norm that clips."""
    rule, _, step = name.partition(" behind ")
    pre = [{"name": step, "norm": 0.5} if step == "clipping" else step] if step else None
    return aggregators.create(rule, pre=pre) if pre else aggregators.create(rule)


def works_with(name: str, clients: int) -> bool:
    """Can the rule work with so many clients? Some need more, and some look at too many subsets of many."""
    try:
        create(name).check(clients)
    except WardroundError:
        return False
    return True


def made_up(clients: int, dimension: int) -> tuple[Callable[[], Updates], dict[str, torch.Tensor]]:
    """A way to wrap the same matrix again (nothing cached from the last time), and what rules need beside it."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.empty(clients, dimension)
    for row in matrix:
        row.normal_(generator=generator).mul_(1e-3)
    extra = {
        "global_weights": 0.05 * torch.randn(dimension, generator=generator),
        "root_update": matrix[0] + matrix[1],
    }
    loss = torch.linspace(0.4, 0.6, clients)
    return lambda: Updates(matrix, metrics={"loss": loss}), extra


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def threads_of(clock: str) -> int:
    """Two threads by the clock; a thread's CPU time is that of one."""
    return 1 if clock == "cpu" else 2


def times(function: Callable[[], Any], repeats: int, clock: str) -> list[float]:
    now, found = CLOCKS[clock], []
    for _ in range(repeats):
        start = now()
        function()
        found.append(1000 * (now() - start))
    return found


def time_rules(
    names: Sequence[str], clients: int, dimension: int, repeats: int, clock: str
) -> dict[str, tuple[float, float]]:
    """Rule → (milliseconds, multiple of the floor), the floor taken in turns with the rule."""
    torch.set_num_threads(threads_of(clock))
    make, extra = made_up(clients, dimension)
    matrix = make().matrix
    shares = torch.full((clients,), 1 / clients)
    found = {}
    for name in names:
        rule = create(name)
        # The model moves, from each call to the next: rules that look at that have something to see.
        moved = {**extra, "global_weights": extra["global_weights"] + 1e-2 * extra["root_update"]}
        given = itertools.cycle([extra, moved])
        for t in (1, 2):  # compiles; and rules that remember need a past
            rule.aggregate(make(), t, **next(given))
        rule_times, floor_times = [], []
        for _ in range(repeats):
            # Both alike: three in a row, after a pause in which torch's threads come to rest.
            floor_times += times(lambda: shares @ matrix, 3, clock)
            time.sleep(0.03)
            call = functools.partial(_aggregate, rule, make, given)
            rule_times += times(call, 3, clock)
            time.sleep(0.03)
        found[name] = (min(rule_times), min(rule_times) / min(floor_times))
    return found


def _aggregate(
    rule: aggregators.Aggregator, make: Callable[[], Updates], given: Iterator[dict[str, torch.Tensor]]
) -> None:
    rule.aggregate(make(), 3, **next(given))


def prepare_peers() -> Path | str:
    """The interpreter of the peers' environment, or why there is none."""
    python = PEERS / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ready = PEERS / "ready"
    if ready.exists():
        return python
    print(f"preparing the peers' environment in {PEERS.relative_to(ROOT)} …", file=sys.stderr)
    venv.create(PEERS, with_pip=True, clear=True)
    # Their own code only; torch, numpy and what else they need is borrowed from this environment.
    packages = ["byzfl", "flwr"]
    done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], capture_output=True)
    if done.returncode:
        return done.stderr.decode().strip().splitlines()[-1]
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(where, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ready.touch()
    return python


def time_peers(
    names: Sequence[str], clients: int, dimension: int, repeats: int, clock: str
) -> dict[str, Any]:
    """Peer → rule → milliseconds, or peer → why not."""
    python = prepare_peers()
    if isinstance(python, str):
        return {"ByzFL": f"not installed: {python}", "Flower": f"not installed: {python}"}
    script = Path(__file__).parent / "peers" / "time_peers.py"
    threads = str(threads_of(clock))
    numbers = map(str, (clients, dimension, repeats, threads))
    # numpy's products have threads of their own
    alike = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    done = subprocess.run(
        [python, script, *numbers, clock, *names], capture_output=True, text=True, env=os.environ | alike
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        return {"ByzFL": why, "Flower": why}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


HEADINGS = {"wall": "clock, 2 threads", "cpu": "CPU, 1 thread"}


def print_speed(
    names: Sequence[str],
    clients: int,
    dimension: int,
    repeats: int,
    peer_repeats: int,
    clocks: Sequence[str],
) -> None:
    """One table: a rule's time and multiple of the floor, and how many times slower each peer is, by each clock."""
    names = [name for name in names if works_with(name, clients)]
    ours = {clock: time_rules(names, clients, dimension, repeats, clock) for clock in clocks}
    peers = {
        clock: time_peers(names, clients, dimension, peer_repeats, clock) for clock in clocks if peer_repeats
    }
    print(f"\n{clients} × {dimension:,} float32\n")
    titles = ["rule", "goal"]
    for clock in clocks:
        titles += [f"ms ({HEADINGS[clock]})", "× floor"]
        titles += ["ByzFL slower", "Flower slower"] if peer_repeats else []
    print("| " + " | ".join(titles) + " |")
    print("|---|" + "---:|" * (len(titles) - 1))
    goals = GOALS | PIPELINES
    for name in names:
        cells = [
            " behind ".join(f"`{part}`" for part in name.split(" behind ")),
            f"≤ {goals[name]}" if name in goals else "",
        ]
        for clock in clocks:
            milliseconds, multiple = ours[clock][name]
            cells += [f"{milliseconds:.1f}", f"{multiple:.1f}"]
            for answer in peers[clock].values() if peer_repeats else ():
                other = answer.get(name, "") if isinstance(answer, dict) else ""
                cells.append(
                    f"{other / milliseconds:.0f}×" if isinstance(other, float) else "failed" * bool(other)
                )
        print("| " + " | ".join(cells) + " |", flush=True)
    for clock, answers in peers.items():
        for peer, answer in answers.items():
            failures = {"": answer} if isinstance(answer, str) else answer
            for name, why in failures.items():
                if isinstance(why, str):
                    print(f"\n{peer} {name} ({HEADINGS[clock]}) did not run: {why}")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure_memory(names: Sequence[str], clients: int, dimension: int) -> dict[str, float]:
    """Rule → peak memory beyond the matrix while it aggregates, as a share of the matrix (Linux only)."""
    make, extra = made_up(clients, dimension)
    size = make().matrix.nbytes
    found = {}
    for name in names:
        rule = aggregators.create(name)
        rule.warm_up(clients, dimension)
        ctypes.CDLL(None).malloc_trim(0)  # what is free but not given back would hide what is needed
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _peak_bytes()
        rule.aggregate(make(), 1, **extra)
        found[name] = max(0, _peak_bytes() - before) / size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clock", choices=CLOCKS)
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--rules", nargs="+", default=())
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--threads", type=int, default=2, help="with --memory")
    parser.add_argument("--json", action="store_true", help="with --memory: one JSON object")
    options = parser.parse_args()
    if unknown := set(options.rules) - set(rules()) - set(PIPELINES):
        parser.error(
            f"no such rule here: {', '.join(sorted(unknown))}; there are {', '.join([*rules(), *PIPELINES])}"
        )
    names = [name for name in rules() if not options.rules or name in options.rules]
    if options.memory:
        torch.set_num_threads(options.threads)
        clients, dimension = (options.clients or [20])[0], options.dimension or 20_000_000
        found = measure_memory(names, clients, dimension)
        if options.json:
            print(json.dumps(found))
            return
        print(f"\nPeak beyond the matrix of {clients} × {dimension:,} float32\n")
        print("| rule | share of the matrix |\n|---|---:|")
        for name, share in found.items():
            print(f"| `{name}` | {share:.2f} |")
        return
    names += [name for name in PIPELINES if not options.rules or name in options.rules]
    clocks = [options.clock] if options.clock else list(CLOCKS)
    dimension = options.dimension or (200_000 if options.quick else 1_200_000)
    repeats, peer_repeats = (5, 1) if options.quick else (6, 2)
    for clients in options.clients or ([20] if options.quick else [20, 50]):
        print_speed(names, clients, dimension, repeats, 0 if options.no_peers else peer_repeats, clocks)


if __name__ == "__main__":
    main()
