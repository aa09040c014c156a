"""Figures of single runs."""

import pytest

from wardround.report.run_figures import figures_of_runs, shown_runs


def test_single_runs_are_the_first_seeds_attacked_ones_first(runs, monkeypatch):
    shown = shown_runs(runs)
    assert len(shown) == 4
    assert {run.seed for run in shown} == {0}
    assert [run.attack == "clean" for run in shown] == [False, False, True, True]
    monkeypatch.setattr("wardround.report.run_figures.RUNS_SHOWN", 1)
    assert len(shown_runs(runs)) == 1


def test_weights_and_timelines_hold_the_lines_of_the_run(runs):
    run = next(r for r in shown_runs(runs) if r.method == "caac")
    ((_, figures),) = figures_of_runs([run])
    weights, timeline, anomaly = figures
    lines = run.clients
    last = {line.client: line.weight for line in lines if line.round == 5}
    assert sorted(trace["y"][-1] for trace in weights.data) == pytest.approx(sorted(last.values()), rel=1e-3)
    marked = [trace for trace in weights.data if trace["line"]["width"] == 2]
    assert len(marked) == len(run.byzantine) == 2
    assert weights.layout["shapes"][0]["x0"] == timeline.layout["shapes"][0]["x0"] == 3
    (heat,) = timeline.data
    assert len(heat["z"]) == 6
    assert len(heat["z"][0]) == 5
    attacking = sum(line.attacking for line in lines)
    assert sum(height in (2, 3) for row in heat["z"] for height in row) == attacking == 6
    assert heat["y"][-1].endswith("⚠")
    assert len(anomaly.data) == 6
