"""Time ByzFL's and Flower's own aggregation functions; runs inside the peers' environment.

Usage: time_peers.py CLIENTS DIMENSION REPEATS THREADS wall|cpu RULE…
→ one JSON line {peer: {rule: milliseconds, or why it failed} or why it cannot be imported}.
Both packages import far more than their aggregators need; whatever of that is missing here is stubbed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _AnyName(type):
    """Metaclass of classes that have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {"__init__": lambda self, *a, **k: None})


class _Stub(ModuleType):
    """A module in which every name exists and does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(_AnyName(self.__name__, (), {}), name)


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line: finds what nobody else has found, below the named packages' missing dependencies."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(name: str) -> ModuleType:
    """Import a module, stubbing third-party modules that turn out to be missing on the way."""
    stubbed: set[str] = set()
    sys.meta_path.append(_StubFinder(stubbed))
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").split(".")[0]
            if not missing or missing in stubbed or missing == name.split(".")[0]:
                raise
            stubbed.add(missing)
            for loaded in [m for m in sys.modules if m.split(".")[0] == name.split(".")[0]]:
                del sys.modules[loaded]


SLOW = 5.0
"""Seconds from which once is enough."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def best(function: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float | str:
    times = []
    try:
        for _ in range(repeats):
            start = clock()
            function()
            times.append(clock() - start)
            if times[-1] > SLOW:
                break
    except Exception as error:  # a rule that does not run is a cell in the table, not the end of it
        return f"{type(error).__name__}: {error}"
    return 1000 * min(times)


def byzfl_rules(matrix: Any, f: int) -> dict[str, Callable[[], Any]]:
    byzfl = load("byzfl")
    rules = {
        "mean": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(f),
        "krum": byzfl.Krum(f),
        "multi-krum": byzfl.MultiKrum(f),
        "rfa": byzfl.GeometricMedian(),
        "centered-clipping": byzfl.CenteredClipping(L=3, tau=10.0),
    }
    return {name: lambda rule=rule: rule(matrix) for name, rule in rules.items()}


def flower_rules(matrix: Any, f: int) -> dict[str, Callable[[], Any]]:
    flower = load("flwr.server.strategy.aggregate")
    n = len(matrix)
    results = [([row], 1) for row in matrix.numpy()]
    return {
        "fedavg": lambda: flower.aggregate(results),
        "median": lambda: flower.aggregate_median(results),
        "trimmed-mean": lambda: flower.aggregate_trimmed_avg(results, f / n),
        "krum": lambda: flower.aggregate_krum(results, f, 0),
        "multi-krum": lambda: flower.aggregate_krum(results, f, n - f),
        "bulyan": lambda: flower.aggregate_bulyan(list(results), f, flower.aggregate_krum, to_keep=0),
    }


def main() -> None:
    import torch

    clients, dimension, repeats, threads = map(int, sys.argv[1:5])
    clock = CLOCKS[sys.argv[5]]
    torch.set_num_threads(threads)
    matrix = 1e-3 * torch.randn(clients, dimension, generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {}
    for peer, rules in (("ByzFL", byzfl_rules), ("Flower", flower_rules)):
        try:
            runs = rules(matrix, clients // 5)
            wanted = {name: run for name, run in runs.items() if name in sys.argv[6:]}
            found[peer] = {name: best(run, repeats, clock) for name, run in wanted.items()}
        except Exception as error:  # nor is a peer that cannot be imported
            found[peer] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
