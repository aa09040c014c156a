"""The anchors on MNIST: each preset tells of the runs that its published figures are about, and on small data (the
8 × 8 digits of scikit-learn) the effect that was published shows.

That the presets run on files in MNIST's layout is in tests/protocols/test_presets_run.py.
"""

from __future__ import annotations

import pytest

from wardround.analysis.published import _is_about, read_published
from wardround.experiments import expand, presets, run
from wardround.runs.config import RunConfig, load_config, override

NAMES = ["anchor-bucketing", "anchor-flanders"]


def configs(name: str) -> list[RunConfig]:
    return expand(*presets.load_matrix(name), ["seeds=[0]"])


def figure(name: str, label: str) -> RunConfig:
    """The run that a published figure is about."""
    published = read_published(*presets.load_matrix(name))
    (one,) = [figure for figure in published.figures if figure.label == label]
    (config,) = [config for config in configs(name) if _is_about(one.where, config.plain())]
    return config


def accuracy(config: RunConfig, tmp_path, rounds: int, **changes) -> float:
    """Of the same run on digits, with a small network."""
    small = {**config.plain(), "dataset": {"name": "digits"}, "model": {"name": "mlp", "hidden": [32]}}
    changes |= {"rounds": rounds, "evaluate_every": rounds, "partition.min_size": 1}
    folder = run(load_config(override(small, changes)), tmp_path, workers=1)
    return folder.rounds()[-1].metrics["accuracy"]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_about_one_run_and_every_run_has_a_figure(name):
    published = read_published(*presets.load_matrix(name))
    of_figures = [
        [config.run_name for config in configs(name) if _is_about(figure.where, config.plain())]
        for figure in published.figures
    ]
    assert [len(members) for members in of_figures] == [1] * len(of_figures)
    assert sorted(name for (name,) in of_figures) == sorted(config.run_name for config in configs(name))


@pytest.mark.slow
def test_buckets_rescue_the_geometric_median_under_ipm(tmp_path):
    """Published: 13.5 % → 95.9 %. Here: chance (10 %), and most digits."""
    alone = accuracy(figure("anchor-bucketing", "RFA, momentum, IPM"), tmp_path, 150)
    buckets = accuracy(figure("anchor-bucketing", "RFA + bucketing, momentum, IPM"), tmp_path, 150)
    assert alone < 0.3
    assert buckets > 0.6


@pytest.mark.slow
def test_six_deviations_break_the_mean_and_no_robust_rule(tmp_path):
    """Published under attack: FedAvg 0.45, trimmed mean 0.61, Bulyan 0.83; without: all above 0.8."""
    changes = {"training.epochs": 15}  # a client has 12 digits: as many steps as with 480 images
    found = {
        label: accuracy(figure("anchor-flanders", label), tmp_path, 10, **changes)
        for label in (
            "no attack, FedAvg",
            "mean - 6 sd, FedAvg",
            "mean - 6 sd, TrimmedMean",
            "mean - 6 sd, Bulyan",
        )
    }
    assert found["no attack, FedAvg"] > 0.6
    assert found["mean - 6 sd, FedAvg"] < 0.4
    assert found["mean - 6 sd, TrimmedMean"] > 0.6
    assert found["mean - 6 sd, Bulyan"] > 0.6


def test_attackers_come_after_those_who_hold_the_data():
    for name in ("anchor-bucketing", "anchor-byzfl"):
        for config in configs(name):
            clients, copies = config.partition["clients"], config.partition["copies"]
            holders = clients - copies
            assert (holders, copies) in {(20, 5), (24, 0), (10, 2), (10, 4)}
            expected = tuple(f"hospital-{i}" for i in range(holders, clients)) or None
            assert config.attack["clients"] == expected
            f = config.aggregator.get("f")
            assert f is None or f == copies


def test_byzfl_cells_are_those_of_its_benchmark():
    """Rules, attacks, numbers of attackers and similarities, in all combinations, with both pre-aggregations."""
    cells = set()
    for config in configs("anchor-byzfl"):
        clipping, nnm = config.aggregator["pre"]
        assert (clipping["name"], nnm["name"]) == ("clipping", "nnm")
        assert nnm["f"] == config.partition["copies"]
        cells.add(
            (
                config.partition["copies"],
                config.partition["gamma"],
                config.aggregator["name"],
                config.attack["name"],
            )
        )
    assert cells == {
        (f, gamma, rule, attack)
        for f in (2, 4)
        for gamma in (1.0, 0.33, 0.0)
        for rule in ("rfa", "trimmed-mean")
        for attack in ("ipm", "optimal-ipm", "optimal-alie")
    }


@pytest.mark.slow
def test_sorted_data_is_harder_than_shuffled_data(tmp_path):
    """In both heat maps the columns fall from γ = 1 to γ = 0."""
    by_gamma = {
        config.partition["gamma"]: accuracy(config, tmp_path, 60)
        for config in configs("anchor-byzfl")
        if (config.partition["copies"], config.aggregator["name"], config.attack["name"])
        == (4, "trimmed-mean", "ipm")
    }
    assert by_gamma[1.0] > 0.4
    assert by_gamma[1.0] > by_gamma[0.0] + 0.1
