"""The critical-difference diagram, drawn only where there is a test behind it."""

from wardround.analysis.ranking import Ranking
from wardround.report.comparison_figures import critical_differences


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
