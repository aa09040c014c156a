"""The time a matrix takes: from trials, with what is finished left out."""

import pytest

from wardround.experiments import estimate as module
from wardround.experiments import expand, run
from wardround.experiments.estimate import Estimate, estimate


@pytest.mark.slow
def test_what_is_finished_costs_nothing_and_the_rest_scales_with_rounds(tiny, tmp_path):
    short, long = expand({"base": tiny, "axes": {"rounds": [4, 4000]}})
    run(short, tmp_path)
    estimated = estimate([short, long], tmp_path, jobs=1)
    assert estimated.left == 1
    assert estimated.seconds > 0
    assert not estimated.at_least
    assert estimate([short], tmp_path, jobs=1).words == "all of them finished"


def test_scaling(tiny, tmp_path, monkeypatch):
    configs = expand({"base": tiny, "axes": {"aggregator.name": ["fedavg", "krum"], "rounds": [10, 30]}})
    costs = {"fedavg": 0.5, "krum": 2.0}
    monkeypatch.setattr(module, "_trials", lambda some: [costs[config.aggregator["name"]] for config in some])
    assert estimate(configs, tmp_path, jobs=1).seconds == pytest.approx(40 * 0.5 + 40 * 2.0)
    assert estimate(configs, tmp_path, jobs=4).seconds == pytest.approx(25.0)
    assert estimate(configs, tmp_path, jobs=100).seconds == pytest.approx(25.0), "no more jobs than runs"
    monkeypatch.setattr(module, "_trials", lambda some: [0.5, None])
    assert estimate(configs, tmp_path, jobs=1).words.startswith("more than")


@pytest.mark.slow
def test_data_that_is_not_there_is_a_reason_not_an_error(tiny, tmp_path):
    (config,) = expand({"base": {**tiny, "dataset": {"name": "csv", "file": "nowhere.csv", "label": "x"}}})
    estimated = estimate([config], tmp_path, jobs=1)
    assert estimated.seconds is None
    assert "nowhere.csv" in estimated.words


def test_words():
    assert Estimate(3, 600.0).words == "about 10 minutes"
    assert Estimate(3, None, reason="no data").words == "no estimate of the time: no data"
