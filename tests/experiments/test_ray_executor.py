"""The same matrix on a real Ray of two workers, one of which is killed in the middle."""

import os
import signal
from importlib.util import find_spec

import pytest

from wardround.errors import WardroundError
from wardround.experiments import RunFolder, expand, ray_executor, run, run_many

# Not imported here: that takes seconds, which those who do not run these tests would wait for.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")


@pytest.mark.slow
def test_two_ray_workers_one_killed_give_what_one_process_gives(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "POLL_SECONDS", 0.02)  # or the runs would be over between two looks
    configs = expand({"base": {**tiny, "rounds": 200}, "axes": {"aggregator.name": ["fedavg", "caac"]}})
    out, killed = tmp_path / "ray", []

    def kill_once(event):
        if event.kind == "round" and 3 <= event.round < 180 and not killed:
            pid = int((out / event.run / ".lock").read_text())
            assert pid != os.getpid(), "the run is executed in a worker of Ray"
            os.kill(pid, signal.SIGKILL)
            killed.append(event.run)

    ends = run_many(configs, out, 2, kill_once, executor="ray")
    assert killed, "a worker was killed, or this test shows nothing"
    assert [event.kind for event in ends] == ["finished"] * 2
    for config in configs:
        alone = run(config, tmp_path / "alone")
        on_ray = RunFolder(out / config.run_name)
        assert [line.round for line in on_ray.rounds()] == list(range(1, 201)), "nothing recorded twice"
        assert on_ray.summary().final == alone.summary().final


@pytest.mark.slow
def test_a_cluster_that_is_not_there(tiny, tmp_path):
    with pytest.raises(WardroundError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run_many(expand({"base": tiny}), tmp_path, 1, lambda event: None, "ray", "127.0.0.1:1")
    assert not list(tmp_path.iterdir())
