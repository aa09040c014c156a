"""Load and faults at a bounded size: make soak.

python tools/soak.py matrix [--runs 1000] [--kills 40] [--seed 0]: a matrix of short runs whose processes are killed
at random, about so many times, and started again until all runs are finished; then every result is compared with the
same matrix left in peace.
python tools/soak.py page [--browsers 500] [--rounds 60] [--seed 0]: that many event streams of the live page, some of
which break off and come back; then every browser must have seen every round exactly once.

Both end with exit code 1 if anything was lost. The federation's part is `make soak-federation`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

RULES = ("fedavg", "median", "krum", "caac", "trimmed-mean")
ATTACKS = ({"name": "none"}, {"name": "sign-flip", "fraction": 0.2})
PATIENCE = 120.0
"""Seconds without any progress after which the test gives up."""


def write_matrix(path: Path, runs: int) -> int:
    """Write a matrix of at least so many short runs; how many it has."""
    seeds = -(-runs // (len(RULES) * len(ATTACKS)))
    values = {
        "name": "soak",
        "base": {
            "dataset": {"name": "synthetic", "samples": 600},
            "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
            "model": {"name": "logistic"},
            "rounds": 3,
        },
        "runs": [{"attack": attack} for attack in ATTACKS],
        "axes": {"aggregator.name": list(RULES)},
        "seeds": list(range(seeds)),
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return seeds * len(RULES) * len(ATTACKS)


def matrix_command(matrix: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "wardround", "matrix", str(matrix), "--out", str(out), "--jobs", "2"]


def children(process: int) -> list[int]:
    """Processes below a process, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == process:
                found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


def finished(out: Path) -> int:
    return len(list(out.glob("*/summary.json")))


def run_with_kills(
    matrix: Path, out: Path, runs_per_kill: float, chance: random.Random, log: Path
) -> dict[str, int]:
    """Start the matrix again and again, and kill all of it or one of its processes, until it ends by itself.

    The next kill waits for some runs to finish, so that most of the time goes into runs and not into starting again,
    and then for some moments, so that it hits runs anywhere.
    """
    kills = {"all processes": 0, "one process": 0}
    wanted, moment = chance.uniform(0, 2 * runs_per_kill), chance.uniform(0, 2)
    with open(log, "a", encoding="utf-8") as lines:
        while True:
            process = subprocess.Popen(
                matrix_command(matrix, out), stdout=lines, stderr=lines, start_new_session=True
            )
            before, last_run, kills_before = finished(out), time.monotonic(), sum(kills.values())
            due = before + max(1, round(wanted))
            while process.poll() is None:
                if (done := finished(out)) > before:
                    before, last_run = done, time.monotonic()
                if done >= due:
                    time.sleep(moment)
                    below = children(process.pid)
                    everything = chance.random() < 0.5 or not below
                    wanted, moment = chance.uniform(0, 2 * runs_per_kill), chance.uniform(0, 2)
                    if process.poll() is not None:
                        break  # it has ended by itself meanwhile
                    if everything:
                        os.killpg(process.pid, signal.SIGKILL)
                        kills["all processes"] += 1
                        break
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(below), signal.SIGKILL)
                        kills["one process"] += 1
                    due = finished(out) + max(1, round(wanted))
                if time.monotonic() - last_run > PATIENCE:
                    os.killpg(process.pid, signal.SIGKILL)
                    said = log.read_text(encoding="utf-8")[-2000:]
                    raise SystemExit(f"no run was finished in {PATIENCE:.0f} s:\n{said}")
                time.sleep(0.2)
            if process.wait() == 0:
                return kills
            if sum(kills.values()) == kills_before:
                said = log.read_text(encoding="utf-8")[-2000:]
                raise SystemExit(
                    f"nobody killed it, and it ended with exit code {process.returncode}:\n{said}"
                )
            print(f"killed so far: {kills}; {finished(out)} runs are finished", file=sys.stderr, flush=True)


def result_of(folder: Path) -> tuple[Any, ...]:
    """What a run found, without times and memory."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    clients = (folder / "clients.jsonl").read_text(encoding="utf-8")
    return summary["status"], summary["final"], [(line["round"], line["metrics"]) for line in rounds], clients


def soak_matrix(runs: int, kills_wanted: int, seed: int) -> None:
    """All runs finished, each with the result that it has without kills, and the analysis accepts the folders."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = write_matrix(folder / "soak.yaml", runs)
        kills = run_with_kills(
            folder / "soak.yaml", folder / "killed", count / kills_wanted, random.Random(seed), folder / "log"
        )
        disturbed = time.monotonic() - begun
        subprocess.run(
            matrix_command(folder / "soak.yaml", folder / "peace"), check=True, stdout=subprocess.DEVNULL
        )
        names = [
            {path.parent.name for path in folder.glob(f"{out}/*/summary.json")} for out in ("killed", "peace")
        ]
        different = [
            run for run in names[1] if result_of(folder / "killed" / run) != result_of(folder / "peace" / run)
        ]
        analysis = [
            sys.executable,
            "-m",
            "wardround",
            "analyze",
            str(folder / "killed"),
            "--out",
            str(folder / "t"),
        ]
        subprocess.run(analysis, check=True, stdout=subprocess.DEVNULL)
    print(
        f"matrix: {count} runs of 3 rounds, {len(names[0])} finished; killed with SIGKILL: all processes "
        f"{kills['all processes']} times, one process {kills['one process']} times; results that differ from those "
        f"without kills: {len(different)}; {time.monotonic() - begun:.0f} s, of which {disturbed:.0f} s with kills",
        flush=True,
    )
    if names[0] != names[1] or len(names[0]) != count or different:
        raise SystemExit(1)


class Browser:
    """One event stream that remembers which rounds it was told of, and when."""

    def __init__(self, client: httpx.AsyncClient, run: str) -> None:
        self.client, self.run = client, run
        self.cursor = ""
        self.rounds: list[int] = []
        self.delays: list[float] = []
        self.connections = 0

    async def listen(self, appended: dict[int, float], until: int) -> None:
        """Read until the last round is there; a broken stream continues behind the last event."""
        headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
        self.connections += 1
        async with self.client.stream("GET", "/events", params={"with": self.run}, headers=headers) as answer:
            answer.raise_for_status()
            identity = ""
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    identity = line[4:]
                elif line.startswith("data: "):
                    self._read(json.loads(line[6:]), appended)
                    self.cursor = identity
                if self.rounds and self.rounds[-1] >= until:
                    return

    def _read(self, message: dict[str, Any], appended: dict[int, float]) -> None:
        for entry in message.get("entries", ()):
            if "round" in entry:
                self.rounds.append(entry["round"])
                if entry["round"] in appended and self.connections == 1:
                    self.delays.append(time.monotonic() - appended[entry["round"]])


async def drive(
    address: str, run: str, folder: Any, browsers: int, rounds: int, chance: random.Random
) -> list[Browser]:
    """Open the streams, append rounds twice a second, and break some streams off after every round."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENCE) as client:
        all_browsers = [Browser(client, run) for _ in range(browsers)]
        appended: dict[int, float] = {}
        tasks = [asyncio.create_task(browser.listen(appended, rounds)) for browser in all_browsers]
        while not all(browser.rounds for browser in all_browsers):  # round 1 is there: everyone is connected
            await asyncio.sleep(0.1)
        for number in range(2, rounds + 1):
            folder.add(1)
            appended[number] = time.monotonic()
            await asyncio.sleep(0.5)
            for place in chance.sample(range(browsers), browsers // 100):
                if not tasks[place].done():
                    tasks[place].cancel()
                    await asyncio.gather(tasks[place], return_exceptions=True)
                    tasks[place] = asyncio.create_task(all_browsers[place].listen(appended, rounds))
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    return all_browsers


def soak_page(browsers: int, rounds: int, seed: int) -> None:
    """Every browser is told of every round once and in order, whatever happens to its connection."""
    from bench_live import Folder

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(Path(name) / "run", 20, 2 * rounds)
        folder.add(1)
        command = [sys.executable, "-m", "wardround", "watch", str(folder.path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                address = re.search(r"http://[\w.:]+", server.stdout.readline())
                assert address is not None, "wardround watch gave no address"
                run = _first_run(address[0])
                done = asyncio.run(drive(address[0], run, folder, browsers, rounds, random.Random(seed)))
                status = Path(f"/proc/{server.pid}/status").read_text()
                used = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            finally:
                server.terminate()
    wrong = [browser for browser in done if browser.rounds != list(range(1, rounds + 1))]
    delays = sorted(delay for browser in done for delay in browser.delays)
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    processor = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
    print(
        f"page: {browsers} event streams, {sum(one.connections for one in done) - browsers} broken off and resumed, "
        f"{rounds} rounds at two per second; a round arrived after {median(delays):.2f} s (median), "
        f"{delays[int(0.99 * len(delays))]:.2f} s (99 %); the server used {processor:.0f} s of processor and "
        f"{peak:.0f} MB; browsers that missed a round or saw one twice: {len(wrong)}; {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    if wrong:
        raise SystemExit(1)


def _first_run(address: str) -> str:
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE:
        if runs := httpx.get(f"{address}/api/runs", timeout=PATIENCE).json():
            return str(runs[0]["id"])
        time.sleep(0.1)
    raise SystemExit("the page knows no run")


def main() -> None:
    parser = argparse.ArgumentParser(description="Load and faults at a bounded size.")
    parser.add_argument("part", choices=("matrix", "page"))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--browsers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.part == "matrix":
        soak_matrix(options.runs, options.kills, options.seed)
    else:
        soak_page(options.browsers, options.rounds, options.seed)


if __name__ == "__main__":
    main()
