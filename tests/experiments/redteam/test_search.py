"""The search of a red team: its order, that it resumes after being killed, and that it finds harm."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from wardround.errors import ConfigError, WardroundError
from wardround.experiments import Event, RunFolder, expand, load_config, read_yaml, run
from wardround.experiments.redteam import read_findings, search
from wardround.experiments.redteam.space import candidates
from wardround.records import Summary

module = sys.modules["wardround.experiments.redteam.search"]


FEW = ("additive-noise", "alie", "ipm", "mimic", "noise", "sign-flip")


@pytest.fixture
def few(monkeypatch):
    """Only some attacks are tried with their defaults first: SQLite takes its time."""
    monkeypatch.setattr(module, "candidates", lambda without=(): FEW)


class Pretence:
    """Runs that take no time: the AUROC of an attacked run is looked up instead of trained for."""

    def __init__(self, monkeypatch, harm=lambda config: 0.1, dies_after=None):
        self.harm, self.dies_after, self.ran = harm, dies_after, []
        monkeypatch.setattr(module, "run_in_processes", self.run_in_processes)
        monkeypatch.setattr(module, "run_many", self.run_many)

    def finish(self, config, out):
        harm = 0.0 if config.attack["name"] == "none" else self.harm(config)
        if harm is None:
            return Event("failed", config.run_name, reason="impossible here")
        folder = RunFolder(out / config.run_name)
        folder.path.mkdir(parents=True, exist_ok=True)
        rates = {"tpr": 1.0, "fpr": 0.0}
        final = {"round": config.rounds, "auroc": 0.9 - harm}
        folder.write_summary(Summary("finished", final=final, detection=rates))
        return Event("finished", config.run_name)

    def run_many(self, configs, out, jobs, listen):
        return [self.finish(config, out) for config in configs]

    def run_in_processes(self, configs, out, jobs, listen, follow):
        waiting = list(configs)
        while waiting:
            assert len(waiting) <= jobs
            config = waiting.pop(0)
            if self.dies_after is not None and len(self.ran) >= self.dies_after:
                raise KeyboardInterrupt
            self.ran.append(config)
            waiting += follow(self.finish(config, out))


@pytest.mark.slow
def test_a_mixture_with_defaults_does_without_what_is_left_out(plan, tried, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "candidates", lambda without: ("mix",))
    left_out = ("noise", "label-flip")  # what a mixture is made of by default
    found = search(plan(tiny, seeds=(200,), without=left_out), tmp_path, trials=1)
    (tried,) = found.trials
    assert tried.attack["name"] == "mix"
    assert not {part["name"] for part in tried.attack["parts"]} & set(left_out)


@pytest.mark.slow
def test_each_attack_is_seen_with_its_defaults_before_any_other(plan, tiny, tmp_path, monkeypatch):
    pretence = Pretence(monkeypatch)
    found = search(plan(tiny, seeds=(200,)), tmp_path, trials=len(candidates()))
    assert [t.attack["name"] for t in found.trials] == list(candidates())
    assert all(config.attack["fraction"] == 0.4 for config in pretence.ran)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_harmless_attacks_are_given_up_after_a_seed_and_harmful_ones_are_not(
    plan, tiny, tmp_path, monkeypatch
):
    harm = {name: place / 100 for place, name in enumerate(reversed(FEW))}
    pretence = Pretence(monkeypatch, lambda config: harm[config.attack["name"]])
    found = search(plan(tiny), tmp_path, trials=len(FEW), jobs=2)
    assert found.worst[0].attack["name"] == FEW[0]
    assert len(found.worst[0].outcomes) == 3
    states = {t.attack["name"]: (t.state, len(t.outcomes)) for t in found.trials}
    assert states[FEW[-1]] == ("halved", 1)
    assert len(pretence.ran) < 2 * len(FEW)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_an_impossible_attack_is_told_and_does_not_stop_the_search(plan, tiny, tmp_path, monkeypatch):
    Pretence(monkeypatch, lambda config: None if config.attack["name"] == "alie" else 0.1)
    found = search(plan(tiny, seeds=(200,)), tmp_path, trials=len(FEW))
    failed = [t for t in found.trials if t.state == "failed"]
    assert [(t.attack["name"], t.reason) for t in failed] == [("alie", "impossible here")]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_what_was_cut_short_is_tried_again_and_nothing_else(plan, tiny, tmp_path, monkeypatch):
    asked = plan(tiny, seeds=(200,))
    first = Pretence(monkeypatch, dies_after=3)
    with pytest.raises(KeyboardInterrupt):
        search(asked, tmp_path, trials=5, jobs=2)
    second = Pretence(monkeypatch)
    found = search(asked, tmp_path, trials=5, jobs=2)
    names = [config.run_name for config in first.ran + second.ran]
    assert len(set(names)) == len(names) == 5, "no run twice"
    assert [t.attack["name"] for t in found.trials] == list(FEW[:5])
    third = Pretence(monkeypatch)
    assert len(search(asked, tmp_path, trials=5).trials) == 5
    assert not third.ran
    assert len(search(asked, tmp_path, trials=7).trials) == 7


@pytest.mark.slow
def test_the_time_may_be_up(plan, tiny, tmp_path, monkeypatch):
    Pretence(monkeypatch)
    assert search(plan(tiny, seeds=(200,)), tmp_path, trials=50, minutes=0).trials == ()


@pytest.mark.slow
def test_another_plan_in_the_same_folder_is_refused(plan, tiny, tmp_path, monkeypatch):
    Pretence(monkeypatch)
    search(plan(tiny), tmp_path, trials=1)
    with pytest.raises(ConfigError, match="another aggregator, seeds; give another --out"):
        search(plan(tiny, aggregator="median", seeds=(7,)), tmp_path, trials=1)


@pytest.mark.slow
def test_a_rule_that_cannot_run_there_is_told(plan, tiny, tmp_path):
    tiny["partition"] = {**tiny["partition"], "clients": 2}
    with pytest.raises(WardroundError, match="krum cannot be run here"):
        search(plan(tiny, aggregator="krum"), tmp_path, trials=1)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_findings_are_written_and_read_back(plan, tiny, tmp_path, monkeypatch):
    Pretence(monkeypatch, lambda config: config.attack["fraction"])
    found = search(plan(tiny, seeds=(200,)), tmp_path, trials=11, jobs=2)
    found.write(tmp_path)
    assert read_findings([tmp_path]) == [found]
    replays = sorted((tmp_path / "worst").glob("*.yaml"))
    assert len(replays) == 10
    for place, path in enumerate(replays):
        config = load_config(read_yaml(path))
        assert config.hash == found.plan.config(found.worst[place].attack, 200).hash
    with pytest.raises(ConfigError, match=r"no redteam\.json in it"):
        read_findings([tmp_path / "worst"])
    (tmp_path / "redteam.json").write_text("{}")
    with pytest.raises(ConfigError, match="'plan' is required"):
        read_findings([tmp_path])


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_against_a_plain_mean_it_finds_great_harm_that_can_be_replayed(plan, tiny, tmp_path):
    tiny["training"] = {"lr": 0.02}  # fast enough that there is something to lose
    asked = plan(tiny, seeds=(200, 201))
    found = search(asked, tmp_path, trials=len(FEW) + 4, jobs=2)
    at_defaults = [t for t in found.trials[: len(FEW)] if t.state == "complete"]
    assert {t.attack["name"] for t in found.trials[: len(FEW)]} == set(FEW)
    assert found.worst[0].loss >= max(t.loss for t in at_defaults)
    assert found.worst[0].loss > 0.1, found.worst[0]
    found.write(tmp_path)
    replay = load_config(read_yaml(tmp_path / found.replay_name(0)))
    summary = run(replay, tmp_path / "replayed").summary()
    assert summary.auroc == found.worst[0].outcomes[0].value


@pytest.mark.slow
def test_killed_in_the_middle_it_resumes_with_what_it_has(tiny, tmp_path):
    tiny["rounds"] = 20
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(tiny))
    command = [
        sys.executable, "-m", "wardround", "redteam", "--aggregator", "mean", "--jobs", "1",
        "--config", str(tmp_path / "base.yaml"), "--seeds", "200", "--out", str(tmp_path / "team"), "--trials",
    ]  # fmt: skip
    with subprocess.Popen([*command, "200"], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while len(finished(tmp_path / "team")) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    before = finished(tmp_path / "team")
    assert len(before) > 2
    count = len(before) + 1  # more than before, of which one was the clean run
    done = subprocess.run([*command, str(count), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    after = finished(tmp_path / "team")
    assert len({json.dumps(t["attack"]) for t in found["trials"]}) == len(found["trials"]) == count
    assert {name: after[name] for name in before} == before, "finished runs are left alone"


def finished(team):
    """Run name → when its summary was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in team.glob("runs/*/summary.json")}


@pytest.mark.slow
def test_rows_at_the_honest_norm_and_residual_are_tried_in_every_setting(plan, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "candidates", lambda without=(): ("ipm", "sign-flip"))
    harm = {"adam": 0.1, "sgd": 0.3}
    pretence = Pretence(monkeypatch, lambda config: harm[config.training.optimizer])
    settings = ({"training.optimizer": "adam"}, {"training": {"optimizer": "sgd", "lr": 0.05}})
    found = search(plan(tiny, seeds=(200,), settings=settings), tmp_path, trials=4)
    assert [(t.attack["name"], t.attack.get("keep"), t.setting) for t in found.trials] == [
        ("ipm", "nothing", 0), ("sign-flip", None, 1), ("ipm", "residual", 0), ("ipm", "norm", 1),
    ]  # fmt: skip
    assert [config.training.optimizer for config in pretence.ran] == ["adam", "sgd", "adam", "sgd"]
    assert found.worst[0].setting == 1
    assert found.clean == found.clean_elsewhere[0] == {200: 0.9}
    found.write(tmp_path)
    worst = yaml.safe_load((tmp_path / found.replay_name(0)).read_text())
    assert worst["training"]["optimizer"] == "sgd"
    matrix = yaml.safe_load((tmp_path / "harmful.yaml").read_text())
    assert [run["attack"]["name"] for run in matrix["runs"]][:2] == ["none", "none"]
    assert expand(matrix)[-1].training.optimizer in harm
