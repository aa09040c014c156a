"""The whole analysis, and the files that it writes."""

import csv
import io
import json

import pytest

from wardround.analysis import analyze, load_runs, write
from wardround.errors import ConfigError
from wardround.protocols import papers


@pytest.mark.slow
def test_files_in_three_notations_and_json(three_seeds, tmp_path):
    out = tmp_path / "deep" / "tables"
    found = analyze(three_seeds, papers=papers())
    paths = write(found, out)
    assert {path.name for path in paths} >= {
        "analysis.md", "analysis.json", "performance.md", "performance.csv", "performance.tex", "runs.csv",
        "minority.csv",
    }  # fmt: skip
    assert not list(out.glob("*.tmp"))
    rows = list(csv.DictReader(io.StringIO((out / "runs.csv").read_text())))
    assert len(rows) == 18
    by_hand = {(row["method"], row["attack"], row["seed"]): row for row in rows}
    assert float(by_hand["krum", "clean", "2"]["auroc"]) == pytest.approx(0.72)
    plain = json.loads((out / "analysis.json").read_text())
    assert [v["key"] for v in plain["hypotheses"]] == ["H1", "H2", "H3"]
    assert "**H1: " in (out / "analysis.md").read_text()


def test_nothing_finished_is_said(make_run):
    make_run(status="stopped")
    with pytest.raises(ConfigError, match="nothing to analyse"):
        analyze(load_runs([make_run.root]))


def test_unfinished_runs_are_named(make_run):
    make_run()
    stopped = make_run(seed=1, status="stopped")
    found = analyze(load_runs([make_run.root]))
    assert found.unfinished == [stopped.path.name]
    assert stopped.path.name in found.markdown()
