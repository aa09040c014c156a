"""What a report holds."""

import pytest

from wardround.analysis import compare
from wardround.analysis.rendering import difference
from wardround.protocols import papers
from wardround.report.contents import collect


@pytest.fixture(scope="module")
def contents(runs):
    return collect(runs, papers())


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
