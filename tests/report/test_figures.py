"""Curves and partitions as figures."""

import pytest

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
    assert [figure.title.split(", ")[-1] for figure in auroc_over_rounds(runs)] == [
        "clean",
        "sign-flip 33 % from round 3",
    ]
