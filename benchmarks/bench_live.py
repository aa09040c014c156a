"""The live page at 100 clients × 1,000 rounds: what a new round costs the server, and how soon a browser shows what.

    python benchmarks/bench_live.py            # 100 clients; a short folder against one of 1,000 rounds
    python benchmarks/bench_live.py --quick    # 20 clients, 100 rounds

The server's cost is processor time of one look at the folder after one round was appended (the median of some) and the
bytes it read. The ratio long/short near 1 says that it does not depend on how much is there already. The browser's
times are by the clock, from opening the page; they need Chromium and playwright, and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from wardround.live.feed import Feed

SHORT = 10
POLLS = 25
PATIENCE = 120.0


class Folder:
    """Writes a run folder as a run with CAAC-FL would: a fifth of the clients attack from a third of the rounds on."""

    def __init__(self, path: Path, clients: int, rounds: int) -> None:
        self.path, self.clients, self.rounds, self.done = path, clients, rounds, 0
        self.random = random.Random(0)
        self.names = [f"hospital-{i:02d}" for i in range(clients)]
        path.mkdir(parents=True)
        config = {
            "aggregator": {"name": "caac"},
            "attack": {"name": "sign-flip", "fraction": 0.2, "start": rounds // 3},
            "rounds": rounds,
            "seed": 0,
            "record": {
                "attack": {"byzantine": self.names[: clients // 5]},
                "clients": {name: [10, 20] for name in self.names},
            },
        }
        (path / "config.yaml").write_text(yaml.safe_dump(config))

    def add(self, count: int) -> None:
        """Append so many rounds."""
        with (
            open(self.path / "clients.jsonl", "a") as clients,
            open(self.path / "rounds.jsonl", "a") as rounds,
        ):
            for _ in range(count):
                self.done += 1
                for place in range(self.clients):
                    clients.write(json.dumps(self._client(place)) + "\n")
                clients.flush()
                auroc = 0.82 - 0.3 * math.exp(-self.done / 8) + self.random.gauss(0, 0.003)
                line = {
                    "round": self.done,
                    "seconds": {"train": 0.2, "evaluate": 0.1},
                    "metrics": {"auroc": auroc},
                }
                rounds.write(json.dumps(line) + "\n")

    def _client(self, place: int) -> dict[str, Any]:
        attacks = place < self.clients // 5 and self.done >= self.rounds // 3
        score = self.random.lognormvariate(-0.5, 0.4) * (6 if attacks else 1)
        own = {
            name: self.random.random()
            for name in ("cosine", "a_mag", "a_dir", "a_temp", "threshold", "reliability")
        }
        return {
            "round": self.done, "client": self.names[place], "byzantine": place < self.clients // 5,
            "attacking": attacks, "num_samples": 50 + 17 * place, "weight": 1 / self.clients, "score": score,
            "flag": score > 2, "status": "ok", "norm": self.random.lognormvariate(0, 0.2), **own, "anomaly": score,
        }  # fmt: skip


def cost_of_a_round(folder: Folder) -> tuple[float, float]:
    """Processor milliseconds and bytes of a poll after one more round, the whole folder being read already."""
    feed = Feed([folder.path])
    feed.poll()
    (run,) = feed.runs.values()
    run.detailed = True
    while feed.poll():
        pass
    seconds, sizes = [], []
    for _ in range(POLLS):
        folder.add(1)
        before, start = run.bytes_read, time.process_time()
        run.poll()
        seconds.append(time.process_time() - start)
        sizes.append(run.bytes_read - before)
    return 1000 * median(seconds), median(sizes)


def bench_server(short: Folder, long: Folder) -> None:
    """Small against large: the ratio is the claim."""
    print(f"one more round of {long.clients} clients, read by the server:")
    print("| rounds before | ms of processor | bytes read |\n|---:|---:|---:|")
    found = []
    for folder in (short, long):
        before = folder.done
        found.append(cost_of_a_round(folder))
        print(f"| {before} | {found[-1][0]:.2f} | {found[-1][1]:.0f} |")
    times, sizes = zip(*found, strict=True)
    print(f"| ratio | {times[1] / times[0]:.2f} | {sizes[1] / sizes[0]:.2f} |\n", flush=True)


class Page:
    """A browser's page that says when something is there."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.start = page, time.perf_counter()
        page.goto(url, wait_until="commit")

    def until(self, condition: str) -> float:
        """Seconds since the page was opened."""
        while not self.page.evaluate(condition):
            if time.perf_counter() - self.start > PATIENCE:
                raise SystemExit(f"waited in vain for {condition}")
            time.sleep(0.05)
        return time.perf_counter() - self.start


def bench_browser(folder: Folder) -> None:
    """First paint, first numbers, the whole heat map; then how soon a new round shows, and the longest pause."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        chromium = None
    if chromium is None:
        print("no Chromium or no playwright: the browser's part is left out")
        return
    command = [sys.executable, "-m", "wardround", "watch", str(folder.path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--headless"])
        print(f"{folder.clients} clients × {folder.done} rounds, seconds from opening the page:")
        print("| | first paint | rounds and curve | heat map whole |\n|---|---:|---:|---:|")
        for words in ("a server that just started", "a second browser"):
            page = Page(browser.new_page(viewport={"width": 1400, "height": 900}), address[0])
            numbers = page.until("document.querySelector('#curves path') !== null")
            whole = page.until(
                f"document.getElementById('heat').ariaLabel?.includes('over {folder.done} rounds')"
            )
            paint = (
                page.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                / 1000
            )
            print(f"| {words} | {paint:.2f} | {numbers:.2f} | {whole:.2f} |", flush=True)
        page.page.evaluate(
            "() => { window.pauses = []; new PerformanceObserver((list) => list.getEntries().forEach("
            "(entry) => window.pauses.push(entry.duration))).observe({ entryTypes: ['longtask'] }); }"
        )
        waits = []
        for _ in range(5):
            folder.add(1)
            begin = time.perf_counter()
            page.until(f"document.getElementById('rounds-done').textContent === '{folder.done}'")
            waits.append(time.perf_counter() - begin)
        longest = page.page.evaluate("Math.max(0, ...window.pauses)")
        print(f"\na new round is on the page after {median(waits):.2f} s (the server looks every 0.4 s);")
        pauses = "none of 50 ms or more" if longest == 0 else f"the longest {longest:.0f} ms"
        print(f"pauses of the page while five rounds came: {pauses}")
        browser.close()
        server.terminate()


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    clients, rounds = (20, 100) if quick else (100, 1000)
    with tempfile.TemporaryDirectory() as out:
        short, long = (Folder(Path(out) / name, clients, 2 * rounds) for name in ("short", "long"))
        short.add(SHORT)
        long.add(rounds - POLLS)
        bench_server(short, long)
        bench_browser(long)


if __name__ == "__main__":
    main()
