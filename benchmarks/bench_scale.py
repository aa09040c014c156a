"""Many runs, many clients, many folders: what the matrix, a federation of 10,000 and an analysis of 14,000 runs cost.

    python benchmarks/bench_scale.py                # writes 14,000 run folders into the temporary folder
    python benchmarks/bench_scale.py --quick        # 1,120 of them, fewer runs, a smaller network
    python benchmarks/bench_scale.py --only runs    # one part: matrix, clients or runs

Processor seconds are those of a command and all its workers; a busy machine changes them less than the clock, which
stands beside them. Memory is the peak of the largest process.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from wardround.aggregators import available as available_rules
from wardround.attacks import available as available_attacks
from wardround.experiments.matrix import expand
from wardround.experiments.presets import load_matrix
from wardround.runs.config import load_config
from wardround.runs.folder import RunFolder
from wardround.runs.integrity import HASH, seal
from wardround.runs.runner import run
from wardround.yaml_text import dump_yaml

CORES = 2
PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl."""
RULES, ATTACKS, LENGTH = 28, 20, 30
"""Of the runs that are analysed: with five alphas and five seeds 14,000 runs of 30 rounds."""
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
    row("caac-core: processor seconds per run of 100 rounds", f"{each:.2f}", "")
    row("… of train, aggregate and evaluate: training", f"{100 * phases['train'] / whole:.0f} %", "")


def whole_matrix(out: Path) -> None:
    """All runs of caac-core, as a person would call them."""
    seconds, clock, _ = measured_command("matrix", "caac-core", "--jobs", str(CORES), "--out", str(out))
    row("caac-core, all of it: processor seconds", f"{seconds:.0f} s", f"{25 * CORES} s")
    row("… by the clock, if no core ever waited", f"{seconds / CORES:.0f} s", "25 s")
    row("… by the clock, measured (whatever else the machine did)", f"{clock:.0f} s", "25 s")


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


def many_runs(out: Path, alphas: Sequence[float], seeds: int) -> None:
    """`analyze` and `report` of a matrix of finished runs, as a person would call them."""
    folders = out / "many"
    count = make_runs(out, folders, alphas, seeds)
    what = f"{count:,} runs × {LENGTH} rounds"
    seconds, clock, memory = measured_command("analyze", str(folders), "--out", str(out / "tables"))
    row(f"{what}: analyze, processor seconds", f"{seconds:.0f} s", "")
    row("… by the clock, in a process per core", f"{clock:.0f} s", "60 s for 14,000")
    row("… peak memory of its largest process", f"{memory:.0f} MB", "")
    row("… analysis.json", f"{(out / 'tables' / 'analysis.json').stat().st_size / 1e6:.0f} MB", "")
    page = out / "report.html"
    seconds, clock, memory = measured_command("report", str(folders), "--out", str(page))
    row(f"{what}: report, processor seconds", f"{seconds:.0f} s", "")
    row("… by the clock", f"{clock:.0f} s", "")
    row("… peak memory of its largest process", f"{memory:.0f} MB", "")
    row("… the page", f"{page.stat().st_size / 1e6:.1f} MB", "20 MB")


def make_runs(out: Path, folders: Path, alphas: Sequence[float], seeds: int) -> int:
    """Finished run folders of every rule, attack, alpha and seed; how many they are.

    Two runs are real, one clean and one attacked. The others have their lines (linked, not copied), configurations of
    their own, and results that differ by rule, attack and seed as those of a matrix do.
    """
    attacks = ["none", *(name for name in available_attacks() if name not in ("none", "mix"))][:ATTACKS]
    originals = {
        attacked: RunContents(
            run(load_config(_config(attack="sign-flip" if attacked else "none")), out, workers=1)
        )
        for attacked in (False, True)
    }
    count = 0
    for alpha, rule, attack in product(alphas, available_rules()[:RULES], attacks):
        original = originals[attack != "none"]
        values = load_config(_config(rule, attack, alpha)).plain()
        values["record"] = original.record
        text = dump_yaml(values)
        lost = 0.0 if attack == "none" else random.Random(f"{rule} {attack}").uniform(-0.01, 0.3)
        for seed in range(seeds):
            noise = random.Random(f"{rule} {attack} {alpha} {seed}").gauss(0, 0.004)
            auroc = 0.86 - 0.02 / alpha**0.5 - lost + noise
            original.write(folders / str(count), {**values, "seed": seed}, text, auroc)
            count += 1
    return count


def _config(rule: str = "caac", attack: str = "none", alpha: float = 0.5) -> dict[str, Any]:
    return {
        "dataset": {"name": "icu"},
        "partition": {"name": "dirichlet", "clients": 20, "alpha": alpha},
        "aggregator": {"name": rule},
        "attack": {"name": attack, "fraction": 0.2, "start": 10},
        "rounds": LENGTH,
    }


class RunContents:
    """The files of a finished run, to be written again with another configuration and another result."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.record = {key: value for key, value in folder.config()["record"].items() if key != HASH}
        self.summary = folder.summary_values() or {}
        self.digest = json.loads((folder.path / "digest.json").read_bytes())

    def write(self, path: Path, values: dict[str, Any], text: str, auroc: float) -> None:
        """Write a run folder; `text` is the YAML of the values with seed 0, which is made once for all seeds."""
        path.mkdir(parents=True)
        for lines in (self.folder.rounds_path, self.folder.clients_path):
            os.link(lines, path / lines.name)
        text = text.replace("\nseed: 0\n", f"\nseed: {values['seed']}\n")
        (path / "config.yaml").write_text(f"{text.rstrip()}\n  {HASH}: {seal(values)}\n", encoding="utf-8")
        summary = {**self.summary, "final": {**self.summary["final"], "auroc": auroc}}
        factor = (auroc - 0.5) / (self.summary["final"]["auroc"] - 0.5)
        curve = [(number, 0.5 + factor * (value - 0.5)) for number, value in self.digest["curve"]]
        for name, content in (("summary.json", summary), ("digest.json", {**self.digest, "curve": curve})):
            (path / name).write_text(json.dumps({**content, HASH: seal(content)}), encoding="utf-8")


def measured_command(*arguments: str) -> tuple[float, float, float]:
    """Processor seconds, seconds by the clock, and peak memory (MB) of a command of wardround, its workers included.

    Workers are children of a fork server that outlives the command for a moment: on Linux this process adopts it, and
    waits until all of them have ended. Elsewhere their processor time is not counted.
    """
    _adopt_orphans()
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "wardround", *arguments], stdout=subprocess.DEVNULL)
    used, peak, clock, status = 0.0, 0, 0.0, 0
    with suppress(ChildProcessError):  # none is left
        while True:
            child, ended, usage = os.wait4(-1, 0)
            used, peak = used + usage.ru_utime + usage.ru_stime, max(peak, usage.ru_maxrss)
            if child == process.pid:
                status, clock = ended, time.monotonic() - start
    if status:
        raise SystemExit(f"wardround {' '.join(arguments)}: exit status {os.waitstatus_to_exitcode(status)}")
    unit = 1e6 if sys.platform == "darwin" else 1e3  # ru_maxrss: bytes there, kilobytes elsewhere
    return used, clock, peak / unit


def _adopt_orphans() -> None:
    """Become the parent of grandchildren whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("matrix", "clients", "runs"), help="one part of it")
    asked = parser.parse_args()
    quick, only = asked.quick, asked.only
    print("| what | measured | target |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        if only in (None, "matrix"):
            matrix(Path(folder) / "matrix", 2 if quick else 8)
            if not quick:
                whole_matrix(Path(folder) / "whole")
        if only in (None, "clients"):
            many_clients(Path(folder), [64] if quick else [1100, 1050])
        if only in (None, "runs"):
            many_runs(Path(folder), [0.5] if quick else [0.1, 0.3, 0.5, 1.0, 5.0], 2 if quick else 5)


if __name__ == "__main__":
    main()
