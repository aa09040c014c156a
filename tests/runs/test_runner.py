"""Runs end to end: the folder's contract, resume after SIGKILL, faults of clients and of configurations."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from fast_cases import slow_but

from wardround import attacks, datasets
from wardround.attacks.base import registry as attack_registry
from wardround.errors import ConfigError, TooFewClients, WardroundError
from wardround.experiments import load_config, run
from wardround.federation.schedule import peak_memory_mb
from wardround.federation.scoring import METRICS
from wardround.records import LeftOut
from wardround.runs import runner
from wardround.runs.runner import build


def metrics_bytes(folder):
    summary = json.loads((folder.path / "summary.json").read_text())
    return json.dumps(
        {key: summary[key] for key in ("final", "best", "detection", "suppression", "rounds_to_90")}
    )


def lines_without_time(folder):
    rounds = [
        {k: v for k, v in record.line().items() if k not in ("seconds", "memory_mb")}
        for record in folder.rounds()
    ]
    return json.dumps([rounds, [record.line() for record in folder.clients()]])


def test_the_folder_holds_what_the_contract_says(tiny, tmp_path):
    tiny |= {
        "aggregator": {"name": "caac", "t_boot": 2},
        "attack": {"name": "sign-flip", "fraction": 0.34, "start": 4},
    }
    folder = run(load_config(tiny), tmp_path)
    assert sorted(p.name for p in folder.path.iterdir() if not p.name.startswith(".")) == [
        "checkpoint.pt", "clients.jsonl", "config.yaml", "digest.json", "rounds.jsonl", "summary.json",
    ]  # fmt: skip
    config = yaml.safe_load(folder.config_path.read_text())
    assert config["training"]["lr"] == 0.001, "defaults included"
    assert {"wardround", "torch", "platform", "engine", "attack"} <= set(config["record"])
    assert config["record"]["precision"] == "float32"
    rounds = folder.rounds()
    assert [line.round for line in rounds] == [1, 2, 3, 4, 5, 6]
    assert {"train", "attack", "aggregate", "evaluate"} <= set(rounds[0].seconds)
    assert set(METRICS) == set(rounds[0].metrics)
    assert config["record"]["threshold"] == "highest F1 on validation rows"
    clients = folder.clients()
    assert len(clients) == 36
    assert {"round", "client", "byzantine", "num_samples", "weight", "score", "flag", "anomaly"} <= set(
        clients[0].line()
    )
    attackers = {line.client for line in clients if line.byzantine}
    assert attackers == set(config["record"]["attack"]["byzantine"])
    assert len(attackers) == 2
    assert {line.round for line in clients if line.attacking} == {4, 5, 6}
    summary = folder.summary()
    assert summary.status == "finished"
    assert {"tpr", "fpr", "fnr", "precision", "recall", "f1", "latency"} == set(summary.detection)
    assert set(summary.suppression) == {"tpr", "fpr"}


def test_weights_of_a_round_sum_to_one(tiny, tmp_path):
    folder = run(load_config(tiny), tmp_path)
    for number in range(1, 7):
        weights = [line.weight for line in folder.clients() if line.round == number]
        assert sum(weights) == pytest.approx(1)


def test_the_same_configuration_gives_the_same_bytes(tiny, tmp_path):
    one, other = run(load_config(tiny), tmp_path / "a"), run(load_config(tiny), tmp_path / "b")
    assert metrics_bytes(one) == metrics_bytes(other)
    assert lines_without_time(one) == lines_without_time(other)


def test_another_seed_gives_another_run(tiny, tmp_path):
    one = run(load_config(tiny), tmp_path)
    other = run(load_config({**tiny, "seed": 1}), tmp_path)
    assert one.path != other.path
    assert metrics_bytes(one) != metrics_bytes(other)


def test_a_finished_run_is_left_alone(tiny, tmp_path):
    folder = run(load_config(tiny), tmp_path)
    before = folder.checkpoint_path.stat().st_mtime_ns
    run(load_config(tiny), tmp_path)
    assert folder.checkpoint_path.stat().st_mtime_ns == before


@pytest.mark.parametrize("rule", ["fedavg", "caac"])
@pytest.mark.parametrize("stop_after", slow_but([3], [0, 1, 3, 5]))
def test_an_interrupted_run_goes_on_as_if_never_stopped(tiny, tmp_path, rule, stop_after):
    tiny |= {"aggregator": {"name": rule}, "attack": {"name": "sign-flip", "fraction": 0.34, "start": 3}}
    tiny |= {"participation": 0.7}
    config = load_config(tiny)
    whole = run(config, tmp_path / "whole")

    def interrupt(record):
        if record.round > stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", interrupt)
    stopped = json.loads((tmp_path / "parts" / config.run_name / "summary.json").read_text())
    assert stopped["status"] == "stopped"
    resumed = run(config, tmp_path / "parts")
    assert metrics_bytes(resumed) == metrics_bytes(whole)
    assert lines_without_time(resumed) == lines_without_time(whole)


KILLED_AT_A_WRITE = """
import json, os, signal, sys
from pathlib import Path
from wardround.aggregators._math import compiled
from wardround.experiments import load_config, run
from wardround.runs import runner

compiled._loops()  # loaded once for all children
runner.SIMULATION_SECONDS = 0.0  # a checkpoint after every round
config, out, stops = json.loads(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
for stop in stops:
    child = os.fork()  # before anything is computed: the child is a process as fresh as this one
    if child == 0:
        written = 0

        def killed(descriptor):
            global written
            written += 1
            if written == stop:
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = killed
        run(load_config(config), out)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), (stop, os.waitstatus_to_exitcode(status))
    print(sum(1 for _ in out.glob("*/rounds.jsonl")) and next(out.glob("*/rounds.jsonl")).read_bytes().count(b"\\n"))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_killed_at_any_write_and_started_again_it_ends_the_same(tiny, tmp_path):
    """Without a warning and without a chance to tidy up, each time at another file and another stage of it."""
    tiny |= {
        "rounds": 20,
        "aggregator": {"name": "caac"},
        "attack": {"name": "sign-flip", "fraction": 0.34, "start": 9},
    }
    whole = run(load_config(tiny), tmp_path / "whole")
    stops = [1, 3, 4, 5, 6, 7, 8, 9, 22, 24]
    arguments = json.dumps(tiny), str(tmp_path / "killed"), json.dumps(stops)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_A_WRITE, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rounds = [int(line) for line in done.stdout.split()]
    assert rounds[0] == 0
    assert 9 < rounds[-1] < 20, "killed before and after the attack began, and never at the end"
    final = run(load_config(tiny), tmp_path / "killed")
    assert metrics_bytes(final) == metrics_bytes(whole)
    assert lines_without_time(final) == lines_without_time(whole)


def test_half_a_line_at_the_end_is_forgotten(tiny, tmp_path):
    config = load_config(tiny)
    whole = run(config, tmp_path / "whole")

    def interrupt(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", interrupt)
    broken = tmp_path / "parts" / config.run_name / "clients.jsonl"
    with open(broken, "a") as file:
        file.write('{"round": 4, "client": "hosp')
    resumed = run(config, tmp_path / "parts")
    assert lines_without_time(resumed) == lines_without_time(whole)


def test_a_checkpoint_that_is_none_is_an_error_not_a_fresh_start(tiny, tmp_path):
    config = load_config(tiny)
    folder = tmp_path / config.run_name
    folder.mkdir()
    (folder / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(WardroundError, match=r"checkpoint\.pt: damaged.*remove the folder to start anew"):
        run(config, tmp_path)


@pytest.mark.parametrize(
    ("lr", "reason"),
    [(1e20, "the model's output is not finite"), (1e38, "no client sent a finite update")],
)
def test_a_learning_rate_that_diverges_does_not_end_as_finished(tiny, tmp_path, lr, reason):
    config = load_config({**tiny, "training": {"lr": lr}})
    summary = run(config, tmp_path).summary()
    assert (summary.status, summary.reason) == ("diverged", f"{reason}, since round 1")
    assert summary.rounds == 6
    again = run(config, tmp_path)
    assert again.summary() == summary


def test_an_aggregated_update_that_is_not_finite_is_said(tiny, tmp_path):
    """Finite weights times the server's step can be too much for float32."""
    config = load_config({**tiny, "server_lr": 1e30, "training": {"lr": 1e15}, "rounds": 1})
    summary = run(config, tmp_path).summary()
    assert (summary.status, summary.reason) == (
        "diverged",
        "the aggregated update is not finite, since round 1",
    )


def test_an_attacker_that_sends_nan_is_no_divergence(tiny, tmp_path, monkeypatch):
    class SendsNan(attacks.Attack):
        name = "nan"

        def craft(self, own, knowledge):
            return torch.full_like(own, float("nan"))

    monkeypatch.setitem(attack_registry._members, "nan", SendsNan)
    folder = run(load_config({**tiny, "attack": {"name": "nan", "fraction": 0.5}}), tmp_path)
    assert folder.summary().status == "finished"


def test_two_processes_do_not_write_one_folder(tiny, tmp_path):
    config = load_config(tiny)

    def second(record):
        with pytest.raises(WardroundError, match="another process"):
            run(config, tmp_path)

    run(config, tmp_path, second)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(tiny, tmp_path, threads):
    code = (
        f"import torch, json; torch.set_num_threads({threads}); from pathlib import Path\n"
        "from wardround.experiments import load_config, run\n"
        f"folder = run(load_config(json.loads({json.dumps(json.dumps(tiny))!s})), Path({str(tmp_path / 't')!r}))\n"
        "print(json.dumps(folder.summary().final))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    expected = run(load_config(tiny), tmp_path / "here").summary().final
    assert json.loads(out.stdout) == expected


def test_the_order_of_clients_changes_nothing(tiny):
    """Training and aggregation of a round, with the clients handed over in another order."""
    federation, mirrored = build(load_config(tiny)), build(load_config(tiny))
    members = mirrored.clients.members
    mirrored.clients.members = dict(reversed(members.items()))
    federation.step(1)
    mirrored.step(1)
    torch.testing.assert_close(federation.weights, mirrored.weights, rtol=0, atol=1e-7)


def test_partial_participation_draws_the_right_number_anew_each_round(tiny, tmp_path):
    folder = run(load_config({**tiny, "participation": 0.5}), tmp_path)
    drawn = [
        frozenset(line.client for line in folder.clients() if line.round == number) for number in range(1, 7)
    ]
    assert {len(clients) for clients in drawn} == {3}
    assert len(set(drawn)) > 1


def test_evaluation_every_third_round_and_always_the_last(tiny, tmp_path):
    folder = run(load_config({**tiny, "rounds": 5, "evaluate_every": 3}), tmp_path)
    assert [line.round for line in folder.rounds() if line.metrics] == [3, 5]


def test_a_client_that_sends_nan_costs_its_row_not_the_run(tiny, tmp_path, monkeypatch):
    class SendsNan(attacks.Attack):
        def craft(self, own, knowledge):
            return torch.full_like(own, float("nan"))

    monkeypatch.setitem(attack_registry._members, "nan", SendsNan)
    SendsNan.name = "nan"
    tiny |= {
        "attack": {"name": "nan", "clients": ["hospital-02"], "start": 2},
        "aggregator": {"name": "caac"},
    }
    folder = run(load_config(tiny), tmp_path)
    rounds, clients = folder.rounds(), folder.clients()
    assert not rounds[0].left_out
    assert "left_out" not in rounds[0].line()
    assert rounds[1].left_out == {"hospital-02": LeftOut("dropped", "not finite")}
    bad = [line for line in clients if line.client == "hospital-02" and line.round > 1]
    assert all(line.weight == 0 and (line.status, line.reason) == ("dropped", "not finite") for line in bad)
    assert folder.summary().dropped_updates == 5
    assert np.isfinite(folder.summary().final["loss"])


def test_a_round_in_which_everyone_sends_nan_is_skipped(tiny, tmp_path, monkeypatch):
    class SendsNan(attacks.Attack):
        def craft(self, own, knowledge):
            return torch.full_like(own, float("nan"))

    monkeypatch.setitem(attack_registry._members, "nan", SendsNan)
    SendsNan.name = "nan"
    tiny |= {"attack": {"name": "nan", "fraction": 1.0, "start": 3, "end": 4}}
    folder = run(load_config(tiny), tmp_path)
    rounds = folder.rounds()
    assert "0 of 6 updates are well-formed" in rounds[2].skipped
    assert rounds[2].metrics == rounds[1].metrics, "the model stays"
    assert rounds[3].metrics != rounds[2].metrics, "training continues"
    assert folder.summary().skipped_rounds == 1


def test_what_cannot_work_is_said_before_anything_is_written(tiny, tmp_path):
    with pytest.raises(ConfigError, match="6 clients × min_size 100 need 600 training samples"):
        run(load_config({**tiny, "partition": {"name": "iid", "clients": 6, "min_size": 100}}), tmp_path)
    with pytest.raises(ConfigError, match=r"there is no 'hospital-99'; did you mean"):
        run(load_config({**tiny, "attack": {"name": "sign-flip", "clients": ["hospital-99"]}}), tmp_path)
    with pytest.raises(TooFewClients, match="krum"):
        run(load_config({**tiny, "aggregator": {"name": "krum", "f": 2}}), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can forget a peak of memory")
def test_a_run_reports_its_own_peak_of_memory(tiny, tmp_path):
    """In a process that has needed more before, as the workers of a matrix have."""
    large = np.ones(60_000_000)  # 480 MB
    peak = peak_memory_mb()
    del large
    folder = run(load_config({**tiny, "rounds": 1}), tmp_path)
    assert folder.rounds()[0].memory_mb < peak - 300


@pytest.mark.slow
def test_runs_over_several_datasets_load_each_of_them_once(monkeypatch):
    """A worker goes through a matrix run by run: what it has loaded stays, so that rules and clients cost nothing."""
    names = ("synthetic", "icu", "breast-cancer", "digits")
    loaded = []
    for name in names:
        source = datasets.registry.get(name)

        def load(self, seed, name=name, own=source.load):
            loaded.append(name)
            return own(self, seed)

        monkeypatch.setattr(source, "load", load)
    runner._dataset.cache_clear()
    runner._partitioned.cache_clear()
    for clients in (3, 4):
        for name in names:
            config = load_config(
                {"dataset": {"name": name}, "partition": {"name": "iid", "clients": clients}, "rounds": 1}
            )
            assert len(runner.load_and_partition(config)[1].clients) == clients
    assert sorted(loaded) == sorted(names)
    runner._dataset.cache_clear()
    runner._partitioned.cache_clear()
