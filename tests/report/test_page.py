"""The page: self-contained, escaped, and with everything in it that the runs hold."""

import json
import re

import pytest

from wardround.analysis import compare, load_runs
from wardround.experiments import expand, run
from wardround.protocols import papers
from wardround.report.contents import collect
from wardround.report.figures import auroc_over_rounds, who_holds_what
from wardround.report.page import write_page
from wardround.report.run_figures import figures_of_runs, shown_runs


@pytest.fixture(scope="module")
def contents(runs):
    return collect(runs, papers())


def test_comparison_pairs_attacked_and_clean_runs_by_seed(runs):
    lines = compare(runs)
    assert [(line.method, line.attack, line.seeds) for line in lines] == [
        ("caac", "clean", 2),
        ("fedavg", "clean", 2),
        ("caac", "sign-flip 33 % from round 3", 2),
        ("fedavg", "sign-flip 33 % from round 3", 2),
    ]
    finals = {(r.method, r.attack, r.seed): r.final("auroc") for r in runs}
    attacked = lines[3]
    expected = [finals["fedavg", "clean", s] - finals["fedavg", attacked.attack, s] for s in (0, 1)]
    assert attacked.loss_of_auroc == pytest.approx(sum(expected) / 2)
    assert lines[0].verdict == "flags"


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


def test_losses_seeds_and_verdicts(contents):
    by_key = {figure.key: figure for figure in contents.figures}
    (heat,) = by_key["loss-0"].data
    assert heat["y"] == ["fedavg", "caac"]
    table = compare(contents.runs)
    expected = next(
        line.loss_of_auroc for line in table if line.method == "fedavg" and line.attack != "clean"
    )
    assert heat["z"][0][0] == pytest.approx(expected, abs=1e-4)
    assert [len(trace["y"]) for trace in by_key["seeds-0"].data] == [4, 4]
    assert [verdict.key for verdict in contents.analysis.verdicts] == ["H1", "H2", "H3"]


def test_the_page_needs_nothing_from_outside_and_trusts_no_name(runs, contents, tmp_path):
    path = write_page(runs, tmp_path / "deep" / "page.html", "a <b>bold</b> </script> title", contents)
    text = path.read_text()
    assert "a &lt;b&gt;bold" in text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text.split("<script>")[0])
    data = re.search(r'id="figures">(.*?)</script>', text, re.S)
    figures = json.loads(data.group(1))
    assert len(figures) == len(contents.all_figures) == len({figure["key"] for figure in figures})
    assert not list(path.parent.glob("*.tmp"))


def test_runs_that_are_not_finished_have_a_page_too(runs, tmp_path):
    from wardround.analysis.runs import Run

    unfinished = Run(runs[0].folder)
    unfinished.summary = None
    text = write_page([unfinished], tmp_path / "page.html", "going on").read_text()
    assert "(+1 unfinished)" in text
    assert "Numbers and statistics" not in text


def test_what_a_private_run_spent_is_told(tmp_path):
    pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
    table = {"name": "synthetic", "samples": 400, "features": 6}
    (config,) = expand({"base": {"dataset": table, "rounds": 2, "privacy": {"dp": {"clip": 1.0}}}})
    folder = run(config, tmp_path)
    spent = folder.summary().privacy["epsilon"]
    text = write_page(load_runs([folder.path]), tmp_path / "page.html", "private").read_text()
    assert f'<td data-value="{spent}">{spent:.3f}</td>' in text
