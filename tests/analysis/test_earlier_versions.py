"""Runs of versions with fewer options beside runs of this one."""

from __future__ import annotations

from wardround.analysis import load_runs
from wardround.analysis.earlier_versions import fill_in_defaults


def test_an_option_that_a_version_did_not_have_stood_at_its_default(make_run):
    """What it is called at its default, and written out, is one setting, one rule and one attack."""
    make_run("fedmed", attack="alie", seed=0)
    make_run(
        "fedmed", attack="alie", seed=1, partition__copies=0, training__client_momentum_start="first",
        aggregator__k_mad=3.0, attack__keep="nothing", server={"optimizer": "sgd"},
    )  # fmt: skip
    labels = {(run.setting, run.method, run.attack) for run in load_runs([make_run.root])}
    assert labels == {("synthetic · dirichlet α 0.1 · 4 clients", "fedmed", "alie 25 % from round 5")}


def test_an_option_away_from_its_default_is_another_setting(make_run):
    make_run(seed=0)
    make_run(seed=1, partition__copies=2, training__client_momentum_start="zero")
    words = {run.seed: run.setting_parts[3:] for run in load_runs([make_run.root])}
    assert words == {
        0: ["copies 0", "client_momentum_start first"],
        1: ["copies 2", "client_momentum_start zero"],
    }


def test_a_member_that_nobody_knows_stays_as_it_was_written():
    configs = [
        {"aggregator": {"name": "gone", "f": 2}},
        {"aggregator": {"name": "gone"}},
        {"aggregator": None},
    ]
    fill_in_defaults(configs)
    assert configs == [
        {"aggregator": {"name": "gone", "f": 2}},
        {"aggregator": {"name": "gone"}},
        {"aggregator": None},
    ]
