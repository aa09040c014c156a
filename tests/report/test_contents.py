"""What a report holds."""

import pytest

from wardround.analysis import compare, load_runs
from wardround.analysis.rendering import difference
from wardround.protocols import papers
from wardround.report.contents import collect


@pytest.fixture(scope="module")
def contents(runs):
    return collect(runs, papers())


@pytest.mark.slow
def test_losses_seeds_and_verdicts(contents):
    by_key = {figure.key: figure for figure in contents.figures}
    (heat,) = by_key["loss-0"].data
    assert heat["y"] == ["fedavg", "caac"]
    table = compare(contents.runs)
    expected = next(
        line.loss_of_auroc for line in table if line.method == "fedavg" and line.attack != "clean"
    )
    assert heat["z"][0][0] == pytest.approx(expected, abs=1e-4)
    assert heat["text"][0][0] == difference(expected)
    assert [len(trace["y"]) for trace in by_key["seeds-0"].data] == [4, 4]
    assert [verdict.key for verdict in contents.analysis.verdicts] == ["H1", "H2", "H3"]


def test_it_is_said_how_many_runs_have_no_figures_of_their_own(runs, make_run):
    assert collect(runs).left_out == 4
    assert collect(runs, every_run=True).left_out == 0
    assert len(collect(runs, every_run=True).single) == 8
    nothing = {"flags": lambda client, number: None, "weights": lambda client, number: None}
    make_run("median", **nothing)
    contents = collect(load_runs([make_run.root]))
    # make_run gives every client a score: the figure of scores is there.
    assert len(contents.single) == 1
    assert "have none" not in contents.selection
