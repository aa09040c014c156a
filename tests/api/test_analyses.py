"""`wardround.analyze`: results, folders and lists of either."""

import pytest
from torch import nn

import wardround
from wardround.analysis import analyze as analyze_runs
from wardround.analysis import load_runs
from wardround.errors import ConfigError
from wardround.protocols import papers


@pytest.fixture
def results(hospitals, tmp_path):
    return [
        wardround.simulate(
            lambda: nn.Linear(5, 1), hospitals, aggregator=rule, attack=attack, seed=seed, rounds=2,
            out=tmp_path / "runs", progress=False,
        )
        for rule in ("median", "fedavg")
        for attack in (None, {"name": "sign-flip", "fraction": 0.2})
        for seed in (0, 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_it_is_the_analysis_of_the_command_line(results, tmp_path):
    expected = analyze_runs(load_runs([tmp_path / "runs"]), "median", papers=papers()).plain()
    for sources in ([results], results, [tmp_path / "runs"], [[r.path for r in results]]):
        analysis = wardround.analyze(*sources, reference="median")
        by_run = sorted(analysis.analysis.plain()["runs"], key=lambda line: line["run"])
        assert by_run == sorted(expected["runs"], key=lambda line: line["run"])
    assert len(analysis.runs) == 8
    assert set(analysis.runs["method"]) == {"median", "fedavg"}
    assert set(analysis.runs["seed"]) == {0, 1}
    assert len(set(analysis.runs["setting"])) == 1, "seeds are paired, whatever weights they start from"
    assert analysis.comparisons["other"]
    assert "8 finished runs" in analysis.markdown()
    assert analysis._repr_markdown_() == analysis.markdown()
    assert analysis.report(tmp_path / "page.html").read_text().count("fedavg")
    assert (tmp_path / "tables" / "analysis.md") in analysis.write(tmp_path / "tables")


def test_nothing_to_analyse():
    with pytest.raises(ConfigError, match="give results of simulate"):
        wardround.analyze()
    with pytest.raises(ConfigError, match="got int"):
        wardround.analyze(3)
