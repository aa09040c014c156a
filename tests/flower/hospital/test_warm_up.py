"""The compiled engine is ready before a hospital's first order."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from wardround.flower.hospital import trainer_daemon
from wardround.flower.hospital import warm_up as module
from wardround.flower.hospital.warm_up import warm_up
from wardround.training.fused import why_not_fused

needs_numba = pytest.mark.skipif(why_not_fused() is not None, reason="without numba nothing is compiled")

FIRST_ORDER = """
import json, sys
import numpy as np
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.warm_up import warm_up
from wardround.flower.messages import TRAIN, Note
from wardround.flower.orders import AUDIT, work_section
from wardround.training.fused import loops

lines = []
warm_up("auto", "cpu", lines.append)
before = [len(loops.train_clients.signatures), sum(loops.train_clients.stats.cache_misses.values())]
data = {"name": "synthetic", "samples": 200, "features": 6}
hospital = Hospital.from_config(hospital_from({"name": "north", "dataset": data, "engine": "fused"}))
config = federation_from({"name": "own", "model": {"name": "mlp", "hidden": [4]}, "federation": {"clients": 4}})
for round, by_outcome in ((1, False), (2, True)):
    policy = {"prox_mu": 0.1, "local_batch_norm": False, "by_outcome": by_outcome}
    head = {"kind": TRAIN, **work_section(config.run), "round": round, "clients": 4, "policy": policy}
    order = Note({**head, AUDIT: [round, "0" * 64]}, {}, {"weights": np.zeros(33, dtype=np.float32)})
    assert hospital.reply(order).arrays["update"].any()
assert hospital.setups.last.work.trainer.engine == "fused"
print(json.dumps([lines, before, [len(loops.train_clients.signatures)]]))
"""


def first_orders(cache=None):
    environment = {**os.environ, **({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_ORDER], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_numba
@pytest.mark.slow
def test_the_first_order_compiles_nothing(tmp_path):
    lines, (signatures, compiled), (after,) = first_orders(tmp_path)  # a machine that has compiled nothing
    assert lines == [module.COMPILING]
    assert (signatures, compiled) == (1, 0), "in another process: here it was only loaded"
    assert after == 1, "the loops that were loaded are those that the orders needed"
    lines, *_ = first_orders(tmp_path)
    assert lines == [], "the next hospital of the machine has nothing to wait for"


TRAINER_MODULES = """
import sys
import yaml
from pathlib import Path
from wardround.flower.hospital import trainer_daemon

trainer_daemon.TrainerDaemon.serve_forever = lambda daemon: print("numba" in sys.modules)
trainer_daemon.main(["--config", sys.argv[1], "--socket", sys.argv[2]])
"""


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize(("samples", "compiled"), [(200, "False"), (20_000, "True")])
def test_only_a_hospital_with_many_samples_holds_a_compiler(samples, compiled, tmp_path):
    data = {"name": "synthetic", "samples": samples, "features": 4}
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump({"name": "north", "dataset": data}))
    command = [sys.executable, "-c", TRAINER_MODULES, tmp_path / "hospital.yaml", tmp_path / "trainer"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == compiled


def test_a_trainer_warms_up_before_it_listens(tmp_path, monkeypatch):
    events = []
    values = {
        "name": "north",
        "dataset": {"name": "synthetic", "samples": 50},
        "engine": "fused",
        "device": "cpu",
    }
    (tmp_path / "hospital.yaml").write_text(yaml.safe_dump(values))
    socket = tmp_path / "trainer"
    monkeypatch.setattr(
        module, "warm_up", lambda engine, device, echo: events.append((engine, device, socket.exists()))
    )
    monkeypatch.setattr(
        trainer_daemon.TrainerDaemon, "serve_forever", lambda daemon: events.append(daemon.path.exists())
    )
    trainer_daemon.main(["--config", str(tmp_path / "hospital.yaml"), "--socket", str(socket)])
    assert events == [("fused", "cpu", False), True]


@pytest.mark.parametrize("engine", ["vectorized", "sequential", "processes"])
def test_other_engines_have_nothing_to_compile(engine, monkeypatch):
    monkeypatch.setattr(module, "load_loops", lambda: pytest.fail("nothing needs these loops"))
    warm_up(engine, "cpu", pytest.fail)


@needs_numba
def test_where_nothing_can_be_kept_it_is_compiled_here(monkeypatch):
    calls, lines = [], []
    monkeypatch.setattr(module, "_cache_folder", lambda: None)
    monkeypatch.setattr(module, "load_loops", lambda: calls.append("here"))
    monkeypatch.setattr(module.subprocess, "run", lambda *args, **options: calls.append("elsewhere"))
    warm_up("auto", "cpu", lines.append)
    assert (calls, lines) == (["here"], [module.COMPILING])


@needs_numba
def test_a_folder_that_cannot_be_locked_is_no_obstacle(tmp_path, monkeypatch):
    calls = []
    (tmp_path / module.LOCK).mkdir()
    monkeypatch.setattr(module, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "load_loops", lambda: calls.append("here"))
    monkeypatch.setattr(module.subprocess, "run", lambda *args, **options: calls.append("elsewhere"))
    warm_up("auto", "cpu", lambda line: None)
    assert calls == ["elsewhere", "here"]
