"""Figures of single runs."""

import pytest

from wardround.analysis import load_runs
from wardround.report.run_figures import choose_runs, figures_of_runs


def test_single_runs_are_the_first_seeds_attacked_ones_first(runs, monkeypatch):
    shown, words = choose_runs(runs)
    assert len(shown) == 4
    assert {run.seed for run in shown} == {0}
    assert [run.attack == "clean" for run in shown] == [False, False, True, True]
    monkeypatch.setattr("wardround.report.run_figures.RUNS_SHOWN", 1)
    shown, fewer = choose_runs(runs)
    assert len(shown) == 1
    assert "4 of 8 runs are left out" in words
    assert "(here 1 of 4); 7 of 8 runs are left out. `wardround report --all` shows every run." in fewer


def test_no_attack_is_dropped_where_there_are_too_many_runs(runs, monkeypatch):
    """The figures of one rule in all scenarios, the clean one too, are worth more than all rules in some of them."""
    monkeypatch.setattr("wardround.report.run_figures.RUNS_SHOWN", 2)
    shown, _ = choose_runs(runs)
    assert [(run.method, run.attack == "clean") for run in shown] == [("caac", False), ("caac", True)]


def test_every_run_is_shown_where_it_is_asked_for(runs, monkeypatch):
    monkeypatch.setattr("wardround.report.run_figures.RUNS_SHOWN", 1)
    shown, words = choose_runs(runs, every_run=True)
    assert sorted(run.folder.path for run in shown) == sorted(run.folder.path for run in runs)
    assert words == "All 8 runs."


def test_where_nothing_is_left_out_nothing_is_said_of_it(runs):
    one_seed = [run for run in runs if run.seed == 0]
    shown, words = choose_runs(one_seed)
    assert len(shown) == 4
    assert words == "All runs."


def test_weights_and_timelines_hold_the_lines_of_the_run(runs):
    run = next(r for r in choose_runs(runs)[0] if r.method == "caac")
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


def test_broken_clients_are_called_broken(make_run):
    make_run(fault="unit-error", broken=["hospital-2"], start=3, rounds=5, attack="alie",
             flags=lambda client, number: client == "hospital-2" and number == 4)  # fmt: skip
    (run,) = load_runs([make_run.root])
    ((_, (weights, timeline, _)),) = figures_of_runs([run])
    assert {trace["name"] for trace in weights.data} == {"honest client", "broken client", "Byzantine client"}
    (heat,) = timeline.data
    (row,) = [cells for name, cells in zip(heat["y"], heat["z"], strict=True) if name.endswith("(broken)")]
    named = heat["colorbar"]["ticktext"]
    assert [named[height] for height in row] == [
        "honest, left alone", "honest, left alone", "broken, left alone", "broken, found", "broken, left alone",
    ]  # fmt: skip
    assert len(heat["colorscale"]) == 2 * len(named) == 12


def test_of_many_clients_some_are_drawn_and_attackers_are_among_them(make_run):
    held = {f"hospital-{i:03d}": [5, 5] for i in range(300)}
    make_run(attack="sign-flip", share=0.5, rounds=2, start=1, held=held, weights=lambda c, n: 1 / 300)
    (run,) = load_runs([make_run.root])
    ((_, figures),) = figures_of_runs([run])
    weights, timeline, anomaly = figures
    for curves in (weights, anomaly):
        assert len(curves.data) == 100
        assert sum(trace["name"] == "Byzantine client" for trace in curves.data) == 50
    assert len(timeline.data[0]["y"]) == len(timeline.data[0]["z"]) == 100
    assert all("Of 300 clients the 100 that took part most often" in figure.caption for figure in figures)
