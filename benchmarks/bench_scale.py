"""Many runs, many clients, many folders: what the matrix, a federation of 10,000 and an analysis of 14,000 runs cost.

    python benchmarks/bench_scale.py            # about two minutes on a quiet machine
    python benchmarks/bench_scale.py --quick    # fewer runs, a smaller network

Times are processor seconds, which a busy machine changes little; the seconds by the clock that follow from them are for
two quiet cores that are used fully. Memory is the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from wardround.analysis import analyze, load_runs
from wardround.experiments.matrix import expand
from wardround.experiments.presets import load_matrix
from wardround.runs.config import load_config
from wardround.runs.digest import write_digest
from wardround.runs.folder import RunFolder
from wardround.runs.runner import run

CORES = 2
RUNS = 14_000
FEDERATION: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 150_000, "features": 32},
    "training": {"optimizer": "sgd", "lr": 0.05},
    "aggregator": {"name": "caac"},
    "attack": {"name": "sign-flip", "fraction": 0.2, "start": 2},
    "rounds": 3,
    "evaluate_every": 3,
}


def row(what: str, value: str, target: str) -> None:
    print(f"| {what} | {value} | {target} |", flush=True)


def matrix(out: Path, runs: int) -> None:
    """Some runs of caac-core in this process, one after the other, the first one not counted."""
    values, where = load_matrix("caac-core")
    configs = expand(values, where)
    first, *chosen = [configs[(5 * place) % len(configs)] for place in range(runs + 1)]
    run(first, out, workers=1)
    start, phases = time.process_time(), dict.fromkeys(("train", "evaluate", "aggregate"), 0.0)
    for config in chosen:
        folder = run(config, out, workers=1)
        for record in folder.rounds():
            for phase in phases:
                phases[phase] += record.seconds[phase]
    each = (time.process_time() - start) / runs
    whole = sum(phases.values())
    row("caac-core: processor seconds per run of 100 rounds", f"{each:.2f}", "0.88")
    row(f"caac-core: {len(configs)} runs on {CORES} cores", f"{each * len(configs) / CORES:.0f} s", "25 s")
    row("… of train, aggregate and evaluate: training", f"{100 * phases['train'] / whole:.0f} %", "")


def federation(out: Path, clients: int, hidden: list[int]) -> float:
    """Peak memory (MB) of a run in which 100 of so many clients take part in each round."""
    config = {
        **FEDERATION,
        "name": f"clients-{clients}",
        "partition": {"name": "iid", "clients": clients},
        "model": {"name": "mlp", "hidden": hidden},
        "participation": 100 / clients,
    }
    file = out / f"clients-{clients}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "wardround", "run", str(file), "--out", str(out / str(clients))]
    subprocess.run(command, check=True, capture_output=True)
    (folder,) = (out / str(clients)).glob("clients-*")
    summary = RunFolder(folder).summary()
    assert summary is not None
    return float(summary.overhead["peak_memory_mb"])


def many_clients(out: Path, hidden: list[int]) -> None:
    few, many = federation(out, 1_000, hidden), federation(out, 10_000, hidden)
    row("1,000 clients, 100 a round: peak memory", f"{few:.0f} MB", "")
    row("10,000 clients, 100 a round: peak memory", f"{many:.0f} MB", "bounded by the round")
    row("… more per client", f"{(many - few) * 1e6 / 9_000 / 1e3:.1f} KB", "stated in docs/runs.md")


def many_runs(out: Path, count: int) -> None:
    """An analysis of copies of a run under other seeds and rules, with their digests and without."""
    config = {
        "dataset": {"name": "icu"},
        "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.5},
        "aggregator": {"name": "caac"},
        "rounds": 30,
    }
    original = run(load_config(config), out, workers=1)
    values, copies = original.config(), out / "copies"
    values["record"].pop("sha256")
    rules = ("caac", "fedavg", "median", "krum", "trimmed-mean")
    for number in range(count):
        copy = RunFolder(shutil.copytree(original.path, copies / str(number)))
        own = {**values, "seed": number // len(rules), "aggregator": {"name": rules[number % len(rules)]}}
        copy.write_config(own)
    analyze(load_runs([copies / str(number) for number in range(10)]))  # loads what every analysis needs once
    for with_digest, target in ((True, "60 s"), (False, "")):
        for folder in map(RunFolder, copies.iterdir()):
            if with_digest:
                write_digest(folder, folder.rounds(), folder.clients())
            else:
                (folder.path / "digest.json").unlink()
        start = time.process_time()
        runs = load_runs([copies])
        read = time.process_time() - start
        analysis = analyze(runs)
        whole = time.process_time() - start
        size = len(json.dumps(analysis.plain()))
        kind = "" if with_digest else ", from their lines"
        seconds = (read / CORES + whole - read) * RUNS / count
        row(f"{RUNS:,} runs × 30 rounds{kind}: analyze on {CORES} cores", f"{seconds:.0f} s", target)
    row("… processor ms to read a run", f"{1000 * read / count:.1f}", "")
    row("… analysis.json", f"{size * RUNS / count / 1e6:.0f} MB", "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("| what | measured | target |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        matrix(Path(folder) / "matrix", 2 if quick else 8)
        many_clients(Path(folder), [64] if quick else [1100, 1050])
        many_runs(Path(folder), 50 if quick else 200)


if __name__ == "__main__":
    main()
