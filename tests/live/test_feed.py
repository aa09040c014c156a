"""All runs below some folders."""

import json
import os
import shutil
import time

import pytest

from wardround import aggregators
from wardround.live.feed import Feed
from wardround.live.stream import Cursor

pytestmark = pytest.mark.usefixtures("always_searching")


def test_a_folder_that_is_not_there_then_empty_then_a_run(read, only, tmp_path, growing):
    feed = read(Feed([tmp_path / "runs"]))
    assert feed.waiting == [f"{tmp_path / 'runs'}: does not exist yet"]
    (tmp_path / "runs").mkdir()
    assert "no run in it yet" in read(feed).waiting[0]
    run = growing()
    found = only(feed)
    assert feed.waiting == []
    assert json.loads(found.info)["status"] == "waiting"
    run.add()
    read(feed)
    assert json.loads(found.info)["status"] == "running"
    run.finish()
    read(feed)
    assert json.loads(found.info)["status"] == "finished"


def test_clients_are_read_of_the_newest_run_and_of_those_somebody_looks_at(read, entries, tmp_path, growing):
    for age, name in ((0, "new"), (100, "old"), (200, "older")):
        path = growing(name).add(3).path
        os.utime(path, (time.time() - age,) * 2)
    feed = read(Feed([tmp_path]))
    runs = {run.name.removeprefix("runs/"): run for run in feed.runs.values()}
    feed.read_details(runs["older"].id)
    read(feed)
    assert {name: len(entries(run, "cells")) for name, run in runs.items()} == {
        "new": 3,
        "old": 0,
        "older": 3,
    }
    assert all(len(entries(run, "round")) == 3 for run in runs.values())


def test_runs_come_and_go(read, messages_at, tmp_path, growing):
    feed = Feed([tmp_path])
    growing("one").add()
    read(feed)
    cursor = Cursor("boot")
    assert [run["name"] for run in messages_at(feed, cursor)[0][1]["runs"]] == ["runs/one"]
    growing("two", aggregator={"name": "krum"}).add()
    read(feed)
    (_, data), *_ = messages_at(feed, cursor)
    assert [run["label"] for run in data["runs"]] == ["krum · sign-flip 25 % · seed 0"]
    shutil.rmtree(tmp_path / "runs" / "two")
    read(feed)
    assert messages_at(feed, cursor)[0][1]["gone"] == [data["runs"][0]["id"]]


def test_labels_say_what_tells_runs_apart(read, tmp_path, growing):
    for alpha in (0.1, 1.0):
        growing(f"a{alpha}", partition={"name": "dirichlet", "alpha": alpha})
    growing("krum", partition={"name": "dirichlet", "alpha": 1.0}, aggregator={"name": "krum", "f": 2})
    labels = {run.label for run in read(Feed([tmp_path])).runs.values()}
    assert labels == {
        "caac · sign-flip 25 % · alpha 0.1 · seed 0",
        "caac · sign-flip 25 % · alpha 1.0 · seed 0",
        "krum · sign-flip 25 % · alpha 1.0 · seed 0",  # f would distinguish krums, but there is only one
    }


def test_seeds_of_one_experiment_have_one_name(read, tmp_path, growing):
    for seed in range(3):
        growing(f"caac-{seed}", seed=seed)
    growing("krum", aggregator={"name": "krum"}, seed=1)
    runs = read(Feed([tmp_path])).runs.values()
    assert sorted((run.group, run.describe()["seed"]) for run in runs) == [
        ("caac · sign-flip 25 %", 0),
        ("caac · sign-flip 25 %", 1),
        ("caac · sign-flip 25 %", 2),
        ("krum · sign-flip 25 %", 1),
    ]
    assert all(run.describe()["group"] == run.group for run in runs)


def test_watching_writes_nothing(only, tmp_path, growing):
    run = growing().add(2)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    only(Feed([tmp_path]))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
    assert run.path in before


def test_reasons_are_the_rules_own_words(read, tmp_path, growing):
    for rule in ("caac-guard", "of-a-plug-in-that-is-not-here"):
        run = growing(rule, aggregator={"name": rule})
        run.append(
            "clients.jsonl", *({**run.client_line(1, name), "flag": True, "why": 2.0} for name in run.clients)
        )
        run.append("rounds.jsonl", run.round_line(1))
    feed = read(Feed([tmp_path]))
    for found in list(feed.runs.values()):
        feed.read_details(found.id)
    read(feed)
    said = {found.path.name: json.loads(found.log.rows[0].text)["why"] for found in feed.runs.values()}
    reasons = aggregators.registry.get("caac-guard").reasons
    assert said["caac-guard"].startswith(f"{reasons[2]}; score 0.5")
    assert said["of-a-plug-in-that-is-not-here"].startswith("reason 2 of the rule; score 0.5")
