"""The compiled engine is ready before a hospital's first order."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from wardround.errors import WardroundError
from wardround.flower.hospital import trainer_daemon
from wardround.flower.hospital import warm_up as module
from wardround.flower.hospital.warm_up import warm_up
from wardround.training.fused import why_not_fused

needs_numba = pytest.mark.skipif(why_not_fused() is not None, reason="without numba nothing is compiled")

FIRST_ORDER = """
import json, os, pathlib, sys
import numpy as np
from wardround.flower.config import federation_from, hospital_from
from wardround.flower.hospital.hospital import Hospital
from wardround.flower.hospital.warm_up import warm_up
from wardround.flower.messages import TRAIN, Note
from wardround.flower.orders import AUDIT, work_section

def cached():
    files = pathlib.Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nb?")
    return sorted([file.name, file.stat().st_mtime_ns] for file in files if "train_clients" in file.name)

warm_up("auto", "cpu", lambda line: print(line, flush=True))
before = cached()
data = {"name": "synthetic", "samples": 200, "features": 6}
hospital = Hospital.from_config(hospital_from({"name": "north", "dataset": data}))
config = federation_from({"name": "own", "model": {"name": "mlp", "hidden": [4]}, "federation": {"clients": 4}})
for round, by_outcome in ((1, False), (2, True)):
    policy = {"prox_mu": 0.1, "local_batch_norm": False, "by_outcome": by_outcome}
    head = {"kind": TRAIN, **work_section(config.run), "round": round, "clients": 4, "policy": policy}
    order = Note({**head, AUDIT: [round, "0" * 64]}, {}, {"weights": np.zeros(33, dtype=np.float32)})
    assert hospital.reply(order).arrays["update"].any()
assert hospital.setups.last.work.trainer.engine == "fused"
print(json.dumps([before, cached(), "numba" in sys.modules]))
"""


def first_orders(cache):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_ORDER], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    return lines, *json.loads(last)


@needs_numba
@pytest.mark.slow
def test_the_first_order_compiles_nothing(tmp_path):
    lines, before, after, stays = first_orders(tmp_path)  # a machine that has compiled nothing
    assert lines == [module.COMPILING]
    assert len(before) == 2, "an index and one compiled function"
    assert after == before, "what was compiled is what the orders needed"
    assert not stays, "numba would hold memory that a waiting hospital has no use for"
    lines, *_ = first_orders(tmp_path)
    assert lines == [], "the next hospital of the machine has nothing to wait for"


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
    warm_up("auto", "cpu", lines.append)
    assert (calls, lines) == (["here"], [module.COMPILING])


@needs_numba
def test_a_folder_that_cannot_be_locked_is_no_obstacle(tmp_path, monkeypatch, capfd):
    (tmp_path / module.LOCK).mkdir()
    monkeypatch.setattr(module, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "load_loops", lambda: print("loads", flush=True))
    warm_up("auto", "cpu", lambda line: print(line, flush=True))
    assert capfd.readouterr().out.splitlines() == [module.COMPILING, "loads", "loads"]


@needs_numba
def test_what_keeps_the_loops_from_loading_is_said(tmp_path, monkeypatch, capfd):
    def fail():
        raise WardroundError("no memory for that")

    monkeypatch.setattr(module, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "load_loops", fail)
    with pytest.raises(WardroundError, match="no memory for that"):
        warm_up("auto", "cpu", lambda line: None)
