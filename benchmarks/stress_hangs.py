"""A hospital that hangs must not delay another's answer: many times, at random moments of rounds.

    python benchmarks/stress_hangs.py --times 100 --seconds 900

Four hospitals with TLS and registered keys, and a model whose update is a megabyte, so that hospitals also stop in the
middle of an upload. Each time one hospital stands still (SIGSTOP: all its processes, its node or its trainer) until
the others have answered a round that it has not. Every tenth time it stands still until the server has given up on it.
Prints how long the others' answers took, and exits with 1 where anybody else was missing in a round.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from soak_federation import NAMES, _command, _signal
from tests.flower.deployment import Deployment

DEADLINE = 20.0
PATIENCE = 600.0
LONG = 10
"""Every so many times a hospital stands still beyond the deadline."""
SLOWEST = 5
"""So many of the slowest are printed."""
ANSWERED = re.compile(r"^train for round (\d+): done", re.MULTILINE)
PARTS = {"all": "", "node": "supernode", "trainer": "trainer_daemon"}


class Stress:
    """One federation whose hospitals hang, one after the other."""

    def __init__(self, folder: Path, times: int, seconds: float, seed: int) -> None:
        self.folder, self.times, self.random = folder, times, random.Random(seed)
        self.end = time.monotonic() + seconds
        self.fed = Deployment(folder, NAMES, quorum=3, deadline_seconds=DEADLINE, retries=60, deliver=False)
        self.fed.configure(
            name="hangs", model={"name": "mlp", "hidden": [512, 512]}, aggregator={"name": "caac"},
            rounds=5000, evaluate_every=5000,
        )  # fmt: skip
        for part, name in enumerate(NAMES):
            data = {"name": "synthetic", "samples": 600, "features": 8}
            partition = {"name": "iid", "clients": len(NAMES)}
            self.fed.hospital(name, dataset=data, partition=partition, part=part)
        self.seconds: list[float] = []
        self.undelayed: list[float] = []
        """Those of hangs that began when no other hospital owed an answer to an earlier round."""
        self.stories: list[tuple[float, str]] = []
        """Of every hang: how long the others took, and what they waited for."""
        self.hung: dict[int, set[str]] = {}
        """Round → who stood still in it."""

    def run(self) -> list[str]:
        """Let hospitals hang; return what is not as it should be."""
        self.fed.serve()
        for name in NAMES:
            self.fed.join(name)
        self._wait(lambda: min(map(self.last_answer, NAMES)) >= 2, "the second round")
        for number in range(1, self.times + 1):
            if time.monotonic() > self.end:
                break
            self.hang(self.random.choice(NAMES), self.random.choice(list(PARTS)), number % LONG == 0)
            time.sleep(self.random.uniform(0.0, 1.0))  # anywhere in a round
        end = max(map(self.last_answer, NAMES))
        self._wait(lambda: max(self.fed.rounds(), default=0) >= end - 1, "the last round")
        return self.problems()

    def hang(self, name: str, part: str, long: bool) -> None:
        """Stop a hospital, wait for the others' answers, and let it go on."""
        pids = [pid for pid in self._of_hospital(name) if PARTS[part] in _command(pid)]
        begin = time.monotonic()
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            own, others = self.last_answer(name), [other for other in NAMES if other != name]
            first = own + 1
            before = {other: self.last_answer(other) for other in others}
            came: dict[str, float] = {}

            def have_answered() -> bool:
                for other in others:
                    if other not in came and self.last_answer(other) > own:
                        came[other] = time.monotonic() - begin
                return len(came) == len(others)

            self._wait(have_answered, f"answers while {name} hangs")
            self.seconds.append(time.monotonic() - begin)
            behind = ", ".join(
                f"{other} (was at {before[other]}) {took:.1f} s" for other, took in came.items()
            )
            story = f"{time.strftime('%H:%M:%S')} {name} ({part}) hung after answering round {own}: {behind}"
            self.stories.append((self.seconds[-1], story))
            if min(before.values()) >= own:
                self.undelayed.append(self.seconds[-1])
            if long:
                self._wait(lambda: max(self.fed.rounds(), default=0) >= first, f"the round without {name}")
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)
        last = max(map(self.last_answer, others))
        for round in range(first - 1, last + 2):  # it may need a moment after that
            self.hung.setdefault(round, set()).add(name)

    def last_answer(self, name: str) -> int:
        """The last round that a hospital has answered, by what it says itself."""
        return max(map(int, ANSWERED.findall(self.fed.output(name))), default=0)

    def problems(self) -> list[str]:
        """Who was missing in a round without having stood still."""
        problems = []
        for line in self.fed.run.clients():
            hung = self.hung.get(line.round, set())
            if line.status != "ok" and line.client not in hung:
                problems.append(
                    f"round {line.round}: {line.client} {line.status} ({line.reason}); {sorted(hung)} hung"
                )
        return problems

    def _of_hospital(self, name: str) -> list[int]:
        marks = (self.folder / f"{name}.yaml", self.folder / f".{name}")
        return sorted({pid for mark in marks for pid in self.fed.processes(mark)})

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {PATIENCE:g} s for {what}\n{self.fed.last_words('serve')}")
            time.sleep(0.05)


def main() -> int:
    """Run it; 0 if nobody was missing but who stood still."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=900.0, help="no more hangs after so long")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="hangs-") as folder:
        stress = Stress(Path(folder), given.times, given.seconds, given.seed)
        try:
            problems = stress.run()
            missing = sum(line.status != "ok" for line in stress.fed.run.clients())
            rounds = len(stress.fed.rounds())
        finally:
            stress.fed.clean_up()
    seconds = sorted(stress.seconds)
    print(
        f"{len(seconds)} hangs in {rounds} rounds; the others had answered after {statistics.median(seconds):.2f} s "
        f"(median), {seconds[-1]:.2f} s (longest); {missing} answers missing, {len(problems)} of others than who hung"
    )
    print(
        f"without the {len(seconds) - len(stress.undelayed)} that began while the round still waited for another who "
        f"had hung before: {max(stress.undelayed, default=0.0):.2f} s (longest of {len(stress.undelayed)})"
    )
    for _, story in sorted(stress.stories, reverse=True)[:SLOWEST]:
        print(f"slow: {story}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
