"""Curves and partitions as figures."""

import pytest

from wardround.analysis import load_runs
from wardround.report.figures import auroc_over_rounds, who_holds_what


def test_curves_and_partitions_hold_the_numbers_of_the_runs(runs):
    (curves,) = auroc_over_rounds(runs)
    lines = [trace for trace in curves.data if trace.get("showlegend", True)]
    assert len(lines) == 4
    clean = [r for r in runs if r.method == "caac" and r.attack == "clean"]
    mean = sum(r.rounds[-1].metrics["auroc"] for r in clean) / 2
    assert next(t for t in lines if t["name"] == "caac, clean")["y"][-1] == pytest.approx(mean, abs=1e-4)
    partitions = list(who_holds_what(runs))
    assert len(partitions) == 2, "one a seed"
    held = sum(sum(trace["y"]) for trace in partitions[0].data)
    assert held == sum(map(sum, runs[0].record["clients"].values()))


def test_too_many_curves_are_dealt_out_over_figures(runs, monkeypatch):
    monkeypatch.setattr("wardround.report.figures.CURVES_TOGETHER", 3)
    assert [figure.title for figure in auroc_over_rounds(runs)] == [
        "AUROC against rounds: clean",
        "AUROC against rounds: sign-flip",
    ]


def test_headings_name_what_differs_and_no_constant(runs, make_run):
    assert [figure.title for figure in auroc_over_rounds(runs)] == ["AUROC against rounds"]
    assert [figure.title for figure in who_holds_what(runs)] == [
        "Who holds which data: seed 0",
        "Who holds which data: seed 1",
    ]
    for alpha in (0.1, 1.0):
        make_run(alpha=alpha)
    different = load_runs([make_run.root])
    assert [figure.title for figure in auroc_over_rounds(different)] == [
        "AUROC against rounds: dirichlet α 0.1",
        "AUROC against rounds: dirichlet α 1",
    ]


def test_many_clients_share_bars(make_run):
    held = {f"hospital-{i:03d}": [i, 1] for i in range(450)}
    make_run(held=held, rounds=1)
    (figure,) = who_holds_what(load_runs([make_run.root]))
    first, second = figure.data
    assert len(first["x"]) == len(first["y"]) == 200
    assert first["x"][0] == "1 to 2"
    assert first["y"][0] == 448.5, "the mean of the two largest"
    assert set(second["y"]) == {1}
    assert "450 clients, the largest first" in figure.caption
