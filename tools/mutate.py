"""Do the tests notice when the core is wrong? A sample of mutations, each against the tests of its module: make mutate.

python tools/mutate.py [--mutants 150] [--seed 0] [--only updates.py] [--out mutants.md]

A mutation changes one operator, number, comparison, condition or loop (cosmic-ray's operators) in a copy of the code.
The tests of that module run in a forked process that has torch imported already. A mutation that no test notices
survives; all survivors are written down with their difference, to be looked at by a person.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401 imported once, before the forks
import numpy as np  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import torch
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "wardround"
PATIENCE = 8.0
"""How many times as long as without a mutation the tests may take, before they count as having noticed."""
NO_MEANING = ("BitOr_", "RemoveDecorator", "Variable")
"""Operators left out: `|` stands in annotations, without decorators nothing is registered, some need names."""


@dataclass(frozen=True)
class Mutation:
    """One change of one module."""

    module: str
    operator: str
    occurrence: int


def core_modules() -> dict[str, list[str]]:
    """Modules of the core → their tests: those at the same path below tests/."""
    names = ["updates.py", "records.py", "runs/audit.py", "runs/quarantine.py"]
    for package in ("aggregators", "attacks", "privacy"):
        names += sorted(f"{package}/{file.name}" for file in (PACKAGE / package).glob("[a-z]*.py"))
    tests = {name: ROOT / "tests" / Path(name).parent / f"test_{Path(name).name}" for name in names}
    return {name: [str(test)] for name, test in tests.items() if test.exists()}


def mutations_of(module: str) -> list[Mutation]:
    """All mutations of a module."""
    tree = get_ast((PACKAGE / module).read_text(encoding="utf-8"))
    nodes = list(ast_nodes(tree))
    found = []
    for name in operator_names():
        if any(part in name for part in NO_MEANING):
            continue
        operator = get_operator(name)()
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        found += [Mutation(module, name, place) for place in range(places)]
    return found


def run_tests(tests: list[str], source: Path, seconds: float) -> str:
    """Run tests against a copy of the package in a forked process: passed, failed or timeout."""
    child = os.fork()
    if child == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        os.chdir(ROOT)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *tests])
        os._exit(0 if code == 0 else 1)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if status == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


class Trial:
    """A copy of the package in which one mutation at a time is tried."""

    def __init__(self, source: Path, modules: dict[str, list[str]]) -> None:
        self.source, self.modules = source, modules
        self.seconds: dict[str, float] = {}

    def has_sound_tests(self, module: str) -> bool:
        """Whether the tests pass without a mutation; how long they take is remembered."""
        if module not in self.seconds:
            begun = time.monotonic()
            outcome = run_tests(self.modules[module], self.source, 300)
            self.seconds[module] = time.monotonic() - begun if outcome == "passed" else 0.0
        return self.seconds[module] > 0

    def outcome(self, mutation: Mutation) -> tuple[str, str]:
        """What the tests say, and the difference that they were to notice."""
        file = self.source / "wardround" / mutation.module
        original = file.read_text(encoding="utf-8")
        changed = mutate_code(original, get_operator(mutation.operator)(), mutation.occurrence)
        if changed is None or changed == original:
            return "nothing changed", ""
        difference = "\n".join(
            line
            for line in difflib.unified_diff(original.splitlines(), changed.splitlines(), lineterm="", n=0)
            if not line.startswith(("---", "+++"))
        )
        file.write_text(changed, encoding="utf-8")
        try:
            outcome = run_tests(
                self.modules[mutation.module], self.source, 20 + PATIENCE * self.seconds[mutation.module]
            )
        finally:
            file.write_text(original, encoding="utf-8")
        return outcome, difference


def main() -> None:
    parser = argparse.ArgumentParser(description="Sampled mutation testing of the core.")
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="a module, as in updates.py")
    parser.add_argument("--out", type=Path, default=Path("mutants.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    modules = {
        name: tests for name, tests in core_modules().items() if not options.only or name in options.only
    }
    everything = [mutation for module in modules for mutation in mutations_of(module)]
    sample = random.Random(options.seed).sample(everything, min(options.mutants, len(everything)))
    print(f"{len(everything)} mutations of {len(modules)} modules; {len(sample)} are tried", flush=True)
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder, open(options.out, "w", encoding="utf-8") as report:
        shutil.copytree(
            ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("*.egg-info", "*.pyc")
        )
        trial = Trial(Path(folder) / "src", modules)
        for mutation in sorted(sample, key=lambda one: one.module):
            if not trial.has_sound_tests(mutation.module):
                print(f"{mutation.module}: its tests fail without a mutation; left out", flush=True)
                continue
            outcome, difference = trial.outcome(mutation)
            counts[mutation.module.split("/")[0].removesuffix(".py"), outcome] += 1
            if outcome == "passed":
                report.write(f"## {mutation.module}: {mutation.operator}\n\n```diff\n{difference}\n```\n\n")
                report.flush()
    print("| part | tried | noticed | survived | score |\n|---|---:|---:|---:|---:|")
    for part in [*sorted({part for part, _ in counts}), None]:
        noticed = sum(
            n for (name, word), n in counts.items() if part in (name, None) and word in ("failed", "timeout")
        )
        survived = sum(n for (name, word), n in counts.items() if part in (name, None) and word == "passed")
        tried = noticed + survived
        print(f"| {part or 'all'} | {tried} | {noticed} | {survived} | {noticed / max(1, tried):.0%} |")
    print(f"survivors, with their differences: {options.out}")


if __name__ == "__main__":
    main()
