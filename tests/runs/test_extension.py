"""More rounds on a run: the same bytes as a run that had them from the start."""

import json

import pytest
import torch

from wardround.errors import ConfigError, DataError
from wardround.experiments import load_config, run
from wardround.runs.best_round import BEST
from wardround.runs.extension import extend
from wardround.runs.folder import RunFolder
from wardround.runs.identity import find_folder


def timeless(folder):
    """Everything that a run computes, without how long it took."""
    rounds = [
        {key: value for key, value in record.line().items() if key not in ("seconds", "memory_mb")}
        for record in folder.rounds()
    ]
    summary = {
        key: value
        for key, value in folder.summary().plain().items()
        if key not in ("overhead", "files", "hash")
    }
    return json.dumps([rounds, [record.line() for record in folder.clients()], summary])


def same(one, other):
    return one.keys() == other.keys() and all(
        same(one[key], other[key]) if isinstance(one[key], dict)
        else torch.equal(one[key].nan_to_num(9.0), other[key].nan_to_num(9.0)) if isinstance(one[key], torch.Tensor)
        else one[key] == other[key]
        for key in one
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"evaluate_every": 3, "training": {"lr": 0.3}}, marks=pytest.mark.slow),
        {"aggregator": {"name": "caac-guard"}, "attack": {"name": "sign-flip", "fraction": 0.34, "start": 3}},
        {"participation": 0.5, "privacy": {"dp": {"epsilon": 8.0}}},
        pytest.param({"training": {"schedule": "step", "step_every": 2}}, marks=pytest.mark.slow),
    ],
    ids=["plain", "evaluated now and then", "a rule with memory", "drawn clients and a budget", "steps"],
)
def test_more_rounds_end_with_the_bytes_of_a_run_that_had_them_from_the_start(tiny, tmp_path, changes):
    short, long = load_config({**tiny, **changes, "rounds": 4}), load_config({**tiny, **changes, "rounds": 7})
    former = run(short, tmp_path / "one")
    before = former.rounds_path.read_bytes()
    assert extend(former, find_folder(long, tmp_path / "one"), long)
    continued, whole = run(long, tmp_path / "one"), run(long, tmp_path / "two")
    assert timeless(continued) == timeless(whole)
    one, other = continued.read_checkpoint(), whole.read_checkpoint()
    assert same(one["federation"], other["federation"])
    assert (one[BEST] is None) == (other[BEST] is None)
    assert one[BEST] is None or same(one[BEST], other[BEST])
    continued.verify()
    assert former.rounds_path.read_bytes() == before, "the shorter run stays what it was"


def test_a_stopped_run_is_gone_on_from_too(tiny, tmp_path):
    short, long = load_config({**tiny, "rounds": 5}), load_config({**tiny, "rounds": 6})

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(short, tmp_path / "one", stop)
    assert extend(find_folder(short, tmp_path / "one"), find_folder(long, tmp_path / "one"), long)
    continued, whole = run(long, tmp_path / "one"), run(long, tmp_path / "two")
    assert timeless(continued) == timeless(whole)


def test_quarantine_and_audit_log_go_along(tiny, tmp_path):
    from wardround.runs.audit import verify
    from wardround.runs.quarantine import AUDIT_LOG, quarantine, quarantined

    short, long = load_config({**tiny, "rounds": 3}), load_config({**tiny, "rounds": 4})

    def aside(record):
        if record.round == 1:
            quarantine(find_folder(short, tmp_path).path, "hospital-02", "labels in doubt")

    former = run(short, tmp_path, aside)
    extend(former, find_folder(long, tmp_path), long)
    continued = run(long, tmp_path)
    assert quarantined(continued.path) == {"hospital-02": "labels in doubt"}
    assert verify(continued.path / AUDIT_LOG) == verify(former.path / AUDIT_LOG)
    last = [record for record in continued.clients() if record.round == 4]
    assert {record.client for record in last if record.status == "quarantined"} == {"hospital-02"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1, "rounds": 8}, "was run with seed = 0, the configuration has 1: only rounds may differ"),
        ({"training": {"lr": 0.5}, "rounds": 8}, "was run with training"),
        ({"rounds": 4}, "has 4 finished rounds; rounds=4 is not more"),
        ({"rounds": 2}, "has 4 finished rounds; rounds=2 is not more"),
    ],
)
def test_another_experiment_is_refused(tiny, tmp_path, changes, message):
    former = run(load_config({**tiny, "rounds": 4}), tmp_path / "one")
    config = load_config({**tiny, **changes})
    target = find_folder(config, tmp_path / "two")
    with pytest.raises(ConfigError, match=message):
        extend(former, target, config)
    assert not target.path.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"schedule": "cosine"}}, "training.schedule cosine depends on the number of rounds"),
        ({"aggregator": {"name": "fedbnp"}}, "aggregator fedbnp practises for a given number of rounds"),
    ],
)
def test_a_run_whose_first_rounds_would_be_others_is_refused(tiny, tmp_path, make_run, changes, message):
    short, long = load_config({**tiny, **changes, "rounds": 2}), load_config({**tiny, **changes, "rounds": 4})
    former = RunFolder(tmp_path / short.run_name)
    former.path.mkdir()
    former.write_config({**short.plain(), "record": {}})
    former.write_checkpoint({"round": 2, "federation": {}})
    with pytest.raises(ConfigError, match=message):
        extend(former, find_folder(long, tmp_path), long)


def test_a_damaged_run_is_refused(tiny, tmp_path):
    former = run(load_config({**tiny, "rounds": 4}), tmp_path)
    former.rounds_path.write_bytes(b"".join(former.rounds_path.read_bytes().splitlines(keepends=True)[1:]))
    long = load_config({**tiny, "rounds": 5})
    with pytest.raises(DataError):
        extend(former, find_folder(long, tmp_path), long)


def test_a_run_that_is_there_is_resumed_as_any_other(tiny, tmp_path):
    short, long = load_config({**tiny, "rounds": 2}), load_config({**tiny, "rounds": 3})
    former, there = run(short, tmp_path), run(long, tmp_path)
    assert not extend(former, there, long)
    assert not extend(former, former, short)
    empty = RunFolder(tmp_path / "empty")
    empty.path.mkdir()
    empty.write_config(short.plain())
    with pytest.raises(ConfigError, match="no round is finished"):
        extend(empty, find_folder(long, tmp_path / "new"), long)
