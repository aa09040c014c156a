"""Losses, boxes over seeds, and the critical-difference diagram, drawn only where there is a test behind it."""

import pytest

from wardround.analysis import load_runs, measure_all
from wardround.analysis.ranking import Ranking
from wardround.analysis.rendering import difference
from wardround.analysis.summaries import summary_tables
from wardround.analysis.tables import compare
from wardround.report.comparison_figures import auroc_over_seeds, critical_differences, loss_by_attack
from wardround.report.html_tables import comparison_table


def test_no_test_no_diagram():
    assert list(critical_differences(None)) == []
    assert (
        list(critical_differences(Ranking(("a", "b", "c"), (1.0, 2.0, 3.0), 3, None, None, "3 blocks"))) == []
    )


def test_methods_stand_at_their_ranks_and_cliques_are_joined():
    ranking = Ranking(("a", "b", "c"), (1.0, 1.5, 3.0), 12, 0.01, 1.0, None)
    (figure,) = critical_differences(ranking)
    *methods, clique, scale = figure.data
    assert [trace["x"][0] for trace in methods] == [1.0, 1.5, 3.0]
    assert [trace["text"][-1].split()[0] for trace in methods] == ["a", "b", "c"]
    assert clique["x"][0] < 1.0 < 1.5 < clique["x"][1] < 3.0
    assert scale["x"] == [1, 2.0]


@pytest.mark.parametrize("loss", [0.02446, 0.02454, 0.0245])
def test_a_difference_has_one_rounding_everywhere(make_run, loss):
    """Rounded to four digits first, 0.02446 would be 0.024 in the table and 0.025 in the picture."""
    make_run("krum", auroc=0.8)
    make_run("krum", auroc=0.8 - loss, attack="alie")
    runs = load_runs([make_run.root])
    measured = measure_all(runs)
    (figure,) = loss_by_attack(measured)
    ((shown,),) = figure.data[0]["text"]
    assert figure.data[0]["texttemplate"] == "%{text}"
    (line,) = [line for line in compare(runs) if line.attack != "clean"]
    (performance,) = [table for table in summary_tables(measured) if table.key == "performance"]
    column = performance.columns.index("ΔAUROC")
    (in_table,) = [row[column] for row in performance.rows if row[1] != "clean"]
    assert shown == difference(line.loss_of_auroc) == in_table
    assert f">{shown}<" in comparison_table([line], {})


def test_a_single_seed_is_a_point_and_not_a_box(make_run):
    for seed in range(3):
        make_run("krum", seed=seed, auroc=0.7 + 0.01 * seed)
        make_run("caac", seed=seed, auroc=0.8 + 0.01 * seed)
    make_run("krum", attack="alie", seed=0)
    measured = measure_all(load_runs([make_run.root]))
    (figure,) = auroc_over_seeds(measured)
    boxes = {trace["name"]: trace for trace in figure.data}
    assert boxes["krum"]["line"]["width"] == 0, "under alie it has one seed"
    assert boxes["krum"]["fillcolor"] == "rgba(0,0,0,0)"
    assert boxes["caac"]["line"]["width"] > 0
    assert len(boxes["krum"]["y"]) == 4, "its points are there"
    assert list(auroc_over_seeds([m for m in measured if m.run.seed == 0])) == []
