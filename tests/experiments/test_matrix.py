"""Matrices: what they expand to, and that two workers give what one gives."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import yaml
from waiting_rule import WaitingRule

from wardround.errors import ConfigError
from wardround.experiments import RunFolder, expand, presets, run, run_many


def test_base_axes_runs_and_seeds_multiply():
    configs = expand(
        {
            "name": "m",
            "base": {"rounds": 3, "aggregator": {"name": "caac", "t_boot": 4}},
            "runs": [{"attack": {"name": "none"}}, {"attack.name": "sign-flip", "attack.fraction": 0.2}],
            "axes": {"aggregator.name": ["caac", "mean"], "partition.alpha": [0.1, 1.0]},
            "seeds": [3, 4],
        }
    )
    assert len(configs) == 16
    assert len({config.hash for config in configs}) == 16
    assert {config.aggregator.get("t_boot") for config in configs} == {4, None}, "mean has no t_boot"
    assert {config.seed for config in configs} == {3, 4}


def test_changes_win_over_base_runs_and_axes():
    matrix = {
        "base": {"rounds": 3, "aggregator": {"name": "caac", "t_boot": 4}},
        "runs": [{"attack": {"name": "none"}}, {"attack": {"name": "alie", "fraction": 0.2, "k": 1}}],
        "axes": {"partition.alpha": [0.1, 1.0]},
        "seeds": [3, 4],
    }
    changes = [
        "rounds=9",
        "attack.name=sign-flip",
        "attack.fraction=0.4",
        "seeds=[7]",
        "axes.partition.alpha=[0.5]",
    ]
    (config,) = expand(matrix, changes=changes)
    assert (config.rounds, config.seed, config.partition["alpha"]) == (9, 7, 0.5)
    assert (config.attack["name"], config.attack["fraction"]) == ("sign-flip", 0.4)
    assert "k" not in config.attack, "the other attack's parameter stays behind"
    assert config.aggregator["t_boot"] == 4
    (by_scenario,) = expand({}, changes=["scenario=dos-noise-40"])
    assert by_scenario.attack["name"] == "noise"
    assert [config.hash for config in expand(matrix)] == [
        config.hash for config in expand(matrix, changes=[])
    ]
    assert matrix["seeds"] == [3, 4], "the matrix itself stays as it is"
    assert list(matrix["axes"]) == ["partition.alpha"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["seeds=3"], "seeds must be a list"),
        (["axes.seed=3"], "axes.seed must be a list"),
        (["roundz=1"], "roundz"),
    ],
)
def test_a_wrong_change_is_an_error(changes, message):
    with pytest.raises(ConfigError, match=message):
        expand({}, changes=changes)


def test_the_file_of_one_run_is_no_matrix():
    with pytest.raises(ConfigError, match=r"c\.yaml: the configuration of one run.*wardround run c\.yaml"):
        expand({"name": "one", "rounds": 3, "aggregator": {"name": "krum"}}, "c.yaml")


def test_runs_on_the_same_data_follow_each_other():
    sets = [{"name": "icu"}, {"name": "synthetic", "samples": 100}, {"name": "synthetic", "samples": 200}]
    rules = [{"aggregator.name": "mean"}, {"aggregator.name": "krum"}]
    found = expand({"axes": {"dataset": sets}, "runs": rules, "seeds": [1, 0]})
    order = [(config.seed, config.dataset.get("samples", 0), config.aggregator["name"]) for config in found]
    assert order == [(s, n, rule) for s in (1, 0) for n in (0, 100, 200) for rule in ("mean", "krum")]


def test_a_run_that_occurs_twice_is_run_once():
    assert len(expand({"axes": {"seed": [0, 0]}})) == 1


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ({"bse": {}}, "unknown key 'bse'; did you mean 'base'"),
        ({"axes": {"seed": 3}}, "axes.seed must be a list"),
        ({"axes": {"agregator.name": ["caac"]}}, "unknown key 'agregator'"),
        ({"runs": [{"rounds": 0}]}, "rounds"),
    ],
)
def test_a_wrong_matrix(matrix, message):
    with pytest.raises(ConfigError, match=message):
        expand(matrix)


def test_a_preset_that_is_not_there():
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        presets.load_matrix("dmo")


@pytest.mark.slow
def test_two_workers_give_what_one_gives_and_finished_runs_are_skipped(tiny, tmp_path):
    configs = expand({"base": tiny, "axes": {"aggregator.name": ["fedavg", "caac"]}, "seeds": [0, 1]})
    seen = []
    ends = run_many(configs, tmp_path / "two", 2, seen.append)
    assert [event.kind for event in ends] == ["finished"] * 4
    assert sum(event.kind == "round" for event in seen) == 4 * 6
    for config in configs:
        alone = run(config, tmp_path / "one").summary()
        together = RunFolder(tmp_path / "two" / config.run_name).summary()
        assert together.final == alone.final
        assert together.detection == alone.detection
    assert [event.kind for event in run_many(configs, tmp_path / "two", 2, seen.append)] == ["skipped"] * 4


@pytest.mark.slow
def test_a_failed_run_does_not_stop_the_others(tiny, tmp_path):
    tiny["partition"] = {"name": "dirichlet", "clients": 6}
    configs = expand({"base": tiny, "axes": {"partition.min_size": [1000, 10]}})
    ends = run_many(configs, tmp_path, 1, lambda event: None)
    assert [event.kind for event in ends] == ["failed", "finished"]
    assert "need 6000 training samples" in ends[0].reason


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_is_tried_again_from_its_checkpoint(tiny, tmp_path, registries):
    waiting = WaitingRule(tmp_path, tmp_path / "killed", round=6)
    (config,) = expand({"base": {**tiny, **waiting.changes(), "rounds": 12}})
    whole = run(config, tmp_path / "whole").summary()

    def kill_the_worker():
        waiting.wait_for_round(lambda: None)
        os.kill(int((tmp_path / "killed" / config.run_name / ".lock").read_text()), signal.SIGKILL)
        waiting.go_on()

    killer = threading.Thread(target=kill_the_worker)
    killer.start()
    seen = []
    (end,) = run_many([config], tmp_path / "killed", 1, seen.append)
    killer.join()
    assert end.kind == "finished"
    rounds = [event.round for event in seen if event.kind == "round"]
    assert rounds[:5] == [1, 2, 3, 4, 5]
    assert 2 <= rounds[5] <= 6, "it goes on behind its last checkpoint: the first round has one"
    assert rounds[5:] == list(range(rounds[5], 13))
    assert RunFolder(tmp_path / "killed" / config.run_name).summary().final == whole.final


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_matrix_whose_own_process_is_killed_ends_quietly_and_its_run_can_go_on(tiny, tmp_path, how):
    matrix, out = tmp_path / "m.yaml", tmp_path / "out"
    waiting = WaitingRule(tmp_path, out, round=2)
    matrix.write_text(yaml.safe_dump({"base": {**tiny, **waiting.changes(), "rounds": 3000}}))
    command = [sys.executable, "-m", "wardround", "matrix", str(matrix), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def still_running():
        assert process.poll() is None, process.communicate()[1]

    waiting.wait_for_round(still_running)
    os.kill(process.pid, how)
    waiting.go_on()  # a worker looks for its parent between rounds
    _, errors = process.communicate(timeout=120)  # ends when the worker, who writes here too, has ended
    assert "Traceback" not in errors
    (folder,) = out.iterdir()
    assert RunFolder(folder).summary().status == "stopped"


def test_an_axis_of_seeds_is_obeyed():
    configs = expand({"base": {"seed": 9}, "axes": {"seed": [3, 4], "rounds": [5, 6]}})
    assert [(config.seed, config.rounds) for config in configs] == [(3, 5), (3, 6), (4, 5), (4, 6)]


def test_a_run_may_have_a_seed_of_its_own():
    configs = expand({"runs": [{"seed": 7}, {"rounds": 5}], "base": {"seed": 2}})
    assert [(config.seed, config.rounds) for config in configs] == [(7, 100), (2, 5)]


@pytest.mark.parametrize(
    ("matrix", "places"),
    [
        ({"axes": {"seed": [1]}, "seeds": [2]}, "seeds and axes.seed"),
        ({"runs": [{}, {"seed": 1}], "seeds": [2]}, r"seeds and runs\[1\].seed"),
        ({"runs": [{"seed": 1}], "axes": {"seed": [2]}}, r"axes.seed and runs\[0\].seed"),
    ],
)
def test_two_places_that_say_which_seeds_are_refused(matrix, places):
    with pytest.raises(ConfigError, match=f"{places} both say which seeds to run; give one of them"):
        expand(matrix)


def test_an_unknown_axis_is_an_error():
    with pytest.raises(ConfigError, match="unknown key 'agregator'"):
        expand({"axes": {"agregator.name": ["mean"]}})
    with pytest.raises(ConfigError, match="unknown key"):
        expand({"axes": {"training.epocs": [1, 2]}})


def test_seeds_that_are_no_list_are_one_line():
    with pytest.raises(ConfigError, match=r"seeds must be a list, for example \[0, 1, 2\], got 2"):
        expand({"base": {}, "seeds": 2})
