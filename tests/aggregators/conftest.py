"""What the tests of the rules share: golden data, and a switch between the two ways through the kernels."""

import json
from pathlib import Path

import pytest
import torch

from wardround import Updates
from wardround.aggregators._math import compiled

DATA = Path(__file__).parent / "data"
CONTRACT = Path(__file__).parent / "test_contract.py"


@pytest.fixture(scope="session")
def golden_round():
    return json.loads((DATA / "one-round.json").read_text())


@pytest.fixture(scope="session")
def golden_caac():
    return json.loads((DATA / "caac-20-rounds.json").read_text())["rounds"]


def pytest_collection_modifyitems(items):
    """Mark cases as slow that cost much and are close to others.

    Every loop has to be compiled once more for double precision. And what every rule promises need not be tried in
    both ways every day: one test per rule compares the two.
    """
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        doubles = given.get("both_paths") == "compiled" and torch.float64 in given.values()
        every_rule = item.path == CONTRACT and given.get("both_paths") == "torch"
        if doubles or every_rule:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["compiled", "torch"])
def both_paths(request, monkeypatch):
    """Run a test with the compiled loops and again without them, as on a machine without numba."""
    if request.param == "torch":
        monkeypatch.setattr(compiled, "_loops", lambda: None)
    else:
        pytest.importorskip("numba")
    return request.param


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setattr(compiled, "_loops", lambda: None)


@pytest.fixture
def make_updates():
    """Random updates with everything that any rule may ask for."""

    def make(n=20, d=40, seed=0, dtype=torch.float32, **changes):
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(n, d, generator=generator).to(dtype) + 0.5
        given = {
            "matrix": matrix,
            "num_samples": torch.randint(10, 100, (n,), generator=generator),
            "metrics": {"loss": torch.rand(n, generator=generator) + 0.1},
        }
        return Updates(**{**given, **changes})

    return make
