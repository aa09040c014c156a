"""Speed and memory of every aggregation rule, beside ByzFL and Flower: `python benchmarks/bench_rules.py`.

`× floor` is the time of a rule, guard included, as a multiple of a plain weighted mean (one matrix–vector
product: as fast as the memory can be read), measured beside it in the same run. The peers run in an environment
of their own under `.bench/`, made on first use.

    --quick     one small size, few repeats
    --cpu       one thread, and its CPU time instead of the clock: what to trust on a machine that is busy
    --memory    peak memory beyond the matrix instead of time (--clients, --dimension; default 20 × 20 M)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wardround import Updates, aggregators

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".bench" / "peers"
GOALS = {
    "median": 4, "trimmed-mean": 4, "krum": 8, "multi-krum": 8, "rfa": 8, "dos": 8, "caac": 4, "fltrust": 5,
    "bulyan": 20,
}  # fmt: skip


def rules() -> list[str]:
    """All but those that train on the server's own data (timed with their training), and caac's ablations."""
    return [
        name
        for name in aggregators.available()
        if not aggregators.registry.get(name).needs_server and not name.startswith("caac-")
    ]


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


def times(function: Callable[[], Any], repeats: int, clock: str) -> list[float]:
    now, found = CLOCKS[clock], []
    for _ in range(repeats):
        start = now()
        function()
        found.append(1000 * (now() - start))
    return found


def time_rules(clients: int, dimension: int, repeats: int, clock: str) -> dict[str, tuple[float, float]]:
    """Rule → (milliseconds, multiple of the floor), the floor taken in turns with the rule."""
    make, extra = made_up(clients, dimension)
    matrix = make().matrix
    shares = torch.full((clients,), 1 / clients)
    found = {}
    for name in rules():
        rule = aggregators.create(name)
        for t in (1, 2):  # compiles; and rules that remember need a past
            rule.aggregate(make(), t, **extra)
        rule_times, floor_times = [], []
        for _ in range(repeats):
            # Both alike: three in a row, after a pause in which torch's threads come to rest.
            floor_times += times(lambda: shares @ matrix, 3, clock)
            time.sleep(0.03)
            rule_times += times(lambda rule=rule: rule.aggregate(make(), 3, **extra), 3, clock)  # type: ignore[misc]
            time.sleep(0.03)
        found[name] = (min(rule_times), min(rule_times) / min(floor_times))
    return found


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


def time_peers(clients: int, dimension: int, repeats: int, clock: str) -> dict[str, Any]:
    """Peer → rule → milliseconds, or peer → why not."""
    python = prepare_peers()
    if isinstance(python, str):
        return {"ByzFL": f"not installed: {python}", "Flower": f"not installed: {python}"}
    script = Path(__file__).parent / "peers" / "time_peers.py"
    numbers = map(str, (clients, dimension, repeats, torch.get_num_threads()))
    done = subprocess.run([python, script, *numbers, clock], capture_output=True, text=True)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        return {"ByzFL": why, "Flower": why}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def print_speed(clients: int, dimension: int, repeats: int, peer_repeats: int, clock: str) -> None:
    ours = time_rules(clients, dimension, repeats, clock)
    peers = time_peers(clients, dimension, peer_repeats, clock)
    how = "CPU time of 1 thread" if clock == "cpu" else f"{torch.get_num_threads()} threads"
    print(f"\n{clients} × {dimension:,} float32, {how}\n")
    print("| rule | ms | × floor | goal | ByzFL ms | ratio | Flower ms | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (milliseconds, multiple) in ours.items():
        goal = f"≤ {GOALS[name]}" if name in GOALS else ""
        cells = [f"`{name}`", f"{milliseconds:.1f}", f"{multiple:.1f}", goal]
        for peer in ("ByzFL", "Flower"):
            other = peers[peer].get(name, "") if isinstance(peers[peer], dict) else ""
            known = not isinstance(other, str)
            cells += (
                [f"{other:.0f}", f"{other / milliseconds:.0f}×"] if known else ["failed" * bool(other), ""]
            )
        print("| " + " | ".join(cells) + " |")
    for peer, answer in peers.items():
        failures = {"": answer} if isinstance(answer, str) else answer
        for name, why in failures.items():
            if isinstance(why, str):
                print(f"\n{peer} {name} did not run: {why}")


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure_memory(clients: int, dimension: int) -> dict[str, float]:
    """Rule → peak memory beyond the matrix while it aggregates, as a share of the matrix (Linux only)."""
    make, extra = made_up(clients, dimension)
    size = make().matrix.nbytes
    found = {}
    for name in rules():
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
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=20_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="with --memory: one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu else options.threads)
    clock = "cpu" if options.cpu else "wall"
    if options.memory:
        found = measure_memory(options.clients, options.dimension)
        if options.json:
            print(json.dumps(found))
            return
        print(f"\nPeak beyond the matrix of {options.clients} × {options.dimension:,} float32\n")
        print("| rule | share of the matrix |\n|---|---:|")
        for name, share in found.items():
            print(f"| `{name}` | {share:.2f} |")
    elif options.quick:
        print_speed(20, 200_000, repeats=5, peer_repeats=1, clock=clock)
    else:
        for clients in (20, 50):
            print_speed(clients, 1_200_000, repeats=9, peer_repeats=2, clock=clock)


if __name__ == "__main__":
    main()
