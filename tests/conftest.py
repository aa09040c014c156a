"""One thread a test process: xdist runs several, and results must not depend on the number anyway."""

import atexit
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import stat
import sys
import types
from pathlib import Path

import hypothesis
import pytest

gc.disable()  # until all tests are collected: modules stay
# A shell ignores Ctrl-C for what it starts in the background, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however long one takes: a test must not fail because a machine is busy.
hypothesis.settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("suite")


def pytest_configure(config):
    """One thread per test process. The process that only hands out tests to the others does not need torch."""
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left alone with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish():
    """Modules and collected tests stay to the end: the garbage collector need not go through them again and again."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries that count their objects at the end find them gone


@pytest.fixture(scope="session")
def chromium():
    """Where the browser is; None: nowhere."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser(chromium):
    """A real browser that talks to nobody by itself. Tests that need it skip where there is none.

    One at a time in a test process, since Playwright does not start twice, and for a module only: what stops a
    federation ends every child of its process, a browser left over among them.
    """
    if chromium is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    quiet = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--headless", *quiet]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_umask():
    """An umask that takes no permission away: files and folders have the mode that the program chose."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def mode_of():
    """The permissions of a file or folder."""
    return lambda path: stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def tiny():
    """A configuration that runs in a blink: 6 clients of a generated table."""
    return {
        "name": "tiny",
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 6,
    }


@pytest.fixture
def registries(monkeypatch):
    """Members and plug-ins that a test brings are gone after it."""
    from wardround import aggregators, attacks, datasets, faults, models, plugins
    from wardround.datasets import partition

    for package in (aggregators, attacks, datasets, faults, models, partition):
        package.registry.available()
        monkeypatch.setattr(package.registry, "_members", dict(package.registry._members))
    monkeypatch.setattr(plugins, "_loaded", dict(plugins._loaded))
    modules = set(sys.modules)
    yield
    for module in set(sys.modules) - modules:
        if module.startswith("wardround_plugin"):
            del sys.modules[module]


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Nobody pulls the plug on a test: what is written need not reach the disk before the test goes on."""
    before = os.fsync
    os.fsync = os.fstat  # an error too where the file is closed
    yield
    os.fsync = before


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory):
    """Names of folders that nobody has made yet: most tests prepare nothing, and a folder costs time."""
    parent = tmp_path_factory.mktemp("caches")
    return (parent / str(number) / "cache" for number in itertools.count())


@pytest.fixture(autouse=True)
def cache(cache_folders, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test prepares into a folder of its own."""
    root = next(cache_folders)
    monkeypatch.setenv("WARDROUND_DATA", str(root))
    return root


FOUR_RUNS = {
    "name": "caac",  # as the CAAC-FL presets name theirs: their hypotheses belong to the report
    "base": {
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 5,
    },
    "runs": [{"attack.name": "none"}, {"attack": {"name": "sign-flip", "fraction": 0.34, "start": 3}}],
    "axes": {"aggregator.name": ["fedavg", "caac"]},
    "seeds": [0, 1],
}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A folder of real runs: two rules, clean and attacked, two seeds."""
    from wardround.experiments import expand, run

    out = tmp_path_factory.mktemp("runs")
    for config in expand(FOUR_RUNS):
        run(config, out)
    return out


@pytest.fixture(scope="session")
def runs(run_folder):
    """The same as the analysis sees them."""
    from wardround.analysis import load_runs

    return load_runs([run_folder])


def _client_records(number, byzantine, start, flags, weights, clients, broken=()):
    from wardround.records import ClientRecord

    return [
        ClientRecord(
            number, client, byzantine=client in byzantine, attacking=client in byzantine and number >= start,
            num_samples=10, weight=weights(client, number), score=1.0 + number % 2,
            flag=flags(client, number), columns={"threshold": 2.0},
            faulty=client in broken, failing=client in broken and number >= start,
        )
        for client in clients
    ]  # fmt: skip


@pytest.fixture
def make_run(tmp_path):
    """Write a run folder by hand: every number in it is the test's own."""
    from wardround.records import SCHEMA_VERSION, EvaluationDetails, RoundRecord
    from wardround.runs.folder import RunFolder
    from wardround.runs.summary import summarize

    counter = iter(range(10_000))

    def make(
        method="caac", attack="none", seed=0, auroc=0.8, rounds=20, start=5, alpha=0.1, share=0.25,
        flags=lambda client, number: False, weights=lambda client, number: 0.25, held=None, drift=None,
        status="finished", curve=None, aggregate=0.001, dataset="synthetic", accuracy=0.75,
        details=None, figures=None, fault="none", broken=(), **more,
    ):  # fmt: skip
        held = held or {f"hospital-{i}": [50 - 10 * i, 10 + 10 * i] for i in range(4)}
        clients = list(held)
        byzantine = clients[: round(share * len(clients))] if attack != "none" else []
        config = {
            "name": "made", "dataset": {"name": dataset, "drift": drift},
            "partition": {"name": "dirichlet", "alpha": alpha, "clients": len(clients)},
            "model": {"name": "mlp"}, "training": {"lr": 0.001}, "aggregator": {"name": method},
            "attack": {"name": attack, "fraction": share, "start": start, "end": None}, "rounds": rounds, "seed": seed,
            "record": {"schema": SCHEMA_VERSION, "clients": held, "class_names": ["a", "b"],
                       "attack": {"byzantine": byzantine}},
        }  # fmt: skip
        if broken:
            config["fault"] = {"name": fault, "fraction": 0.25, "start": start, "end": None}
            config["record"]["fault"] = {"fault": fault, "broken": list(broken), "start": start, "end": None}
        for key, value in more.items():
            section, _, name = key.partition("__")
            if name:
                config[section][name] = value
            else:
                config[section] = value
        folder = RunFolder(tmp_path / "runs" / f"made-{next(counter)}")
        folder.path.mkdir(parents=True)
        folder.write_config(config)
        curve = curve or (lambda number: auroc * min(1.0, 0.5 + 0.1 * number))
        own = {client: {"auroc": 0.6 + 0.1 * i} for i, client in enumerate(clients)}
        records = [
            RoundRecord(
                number,
                seconds={"train": 0.1, "attack": 0.0, "aggregate": aggregate, "evaluate": 0.1},
                metrics={
                    "auroc": curve(number), "auprc": (curve(number) or 0) / 2, "accuracy": accuracy,
                    "f1": 0.5, "loss": None if curve(number) is None else 1.0,  # not finite: no loss either
                    **(figures or {}),
                },
                validation={"auroc": curve(number)},
                per_client=own if number == rounds else None,
                memory_mb=100.0,
                clients=_client_records(number, byzantine, start, flags, weights, clients, broken),
                details=details or EvaluationDetails(),
            )
            for number in range(1, rounds + 1)
        ]  # fmt: skip
        for record in records:
            folder.append(record)
        everyone = [client for record in records for client in record.clients]
        folder.write_summary(summarize(records, everyone, status))
        return folder

    make.root = tmp_path / "runs"
    return make


@pytest.fixture
def table_of():
    """A table of an analysis by its key."""
    return lambda analysis, key: next(table for table in analysis.tables if table.key == key)


@pytest.fixture(scope="module")
def byzfl():
    """ByzFL's `rules` and `attacks` without its training framework, which would need torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        pytest.skip("ByzFL is not installed: pip install --no-deps byzfl==0.0.11")
    before = {name for name in sys.modules if name.split(".")[0] == "byzfl"}
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = package
    rules = importlib.import_module("byzfl.aggregators")
    yield types.SimpleNamespace(rules=rules, attacks=importlib.import_module("byzfl.attacks.attacks"))
    for name in [name for name in sys.modules if name.split(".")[0] == "byzfl" and name not in before]:
        del sys.modules[name]
