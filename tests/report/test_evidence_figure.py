"""The evidence in one picture."""

import pytest

from wardround.analysis.recommendation import recommend
from wardround.report.evidence_figure import evidence_figure
from wardround.report.paper import write_figures


def made(attacks, seeds=(0, 1, 2)):
    return recommend(
        {
            method: {
                (attack, seed): clean - loss * number + 0.01 * seed
                for number, attack in enumerate(["clean", *attacks])
                for seed in seeds
            }
            for method, clean, loss in (("fedavg", 0.85, 0.1), ("median", 0.83, 0.01))
        }
    )


def test_marks_are_means_and_bars_reach_from_the_lowest_to_the_highest_seed():
    figure = evidence_figure("evidence-0", made(["alie 20 %"]), {"alie 20 %": "alie"})
    marks = {trace["name"]: trace for trace in figure.data if trace["mode"] == "markers"}
    assert list(marks) == ["without attack", "alie"]
    assert figure.layout["yaxis"]["ticktext"] == ["fedavg", "median"], (
        "the best is on top: the axis counts upwards"
    )
    assert marks["alie"]["x"] == pytest.approx([0.76, 0.83])
    assert marks["alie"]["error_x"]["array"] == pytest.approx([0.01, 0.01])
    assert marks["alie"]["error_x"]["arrayminus"] == pytest.approx([0.01, 0.01])
    ways = [trace for trace in figure.data if trace["mode"] == "lines"]
    assert [trace["x"] for trace in ways] == [pytest.approx([0.76, 0.86]), pytest.approx([0.83, 0.84])]
    assert "means over 3 seeds" in figure.caption


def test_many_attacks_are_shown_by_their_mean_and_the_worst_case():
    figure = evidence_figure("evidence-0", made(["a", "b", "c", "d"]), {})
    marks = {trace["name"]: trace for trace in figure.data if trace["mode"] == "markers"}
    assert list(marks) == ["without attack", "mean of 4 attacks", "worst case"]
    assert marks["worst case"]["x"] == pytest.approx([0.46, 0.80])
    low, high = figure.layout["xaxis"]["range"]
    assert low < 0.45
    assert high > 0.87


def test_nothing_compared_has_no_picture():
    assert evidence_figure("evidence-0", recommend({}), {}) is None


def test_it_can_be_drawn_for_a_paper(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra 'figures' is not installed")
    figure = evidence_figure("evidence-0", made(["alie", "noise"]), {})
    (path,) = write_figures([figure], tmp_path, formats=["svg"])
    drawn = path.read_text()
    assert all(f">{name}<" in drawn for name in ("without attack", "alie", "noise", "median", "fedavg"))
