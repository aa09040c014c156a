"""The page: self-contained, escaped, and with everything in it that the runs hold."""

import json
import re

import pytest

from wardround.analysis import compare, load_runs
from wardround.experiments import expand, run
from wardround.report.figures import anomaly_over_time, auroc_over_rounds, who_holds_what
from wardround.report.page import write_page

MATRIX = {
    "base": {
        "dataset": {"name": "synthetic", "samples": 400, "features": 6},
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 5,
    },
    "runs": [{"attack.name": "none"}, {"attack": {"name": "sign-flip", "fraction": 0.34, "start": 3}}],
    "axes": {"aggregator.name": ["fedavg", "caac"]},
    "seeds": [0, 1],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for config in expand(MATRIX):
        run(config, out)
    return load_runs([out])


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
    assert attacked.verdict == "weights"
    assert lines[0].verdict == "flags"


def test_figures_hold_the_numbers_of_the_runs(runs):
    (curves,) = auroc_over_rounds(runs)
    lines = [trace for trace in curves.data if trace.get("showlegend", True)]
    assert len(lines) == 4
    clean = [r for r in runs if r.method == "caac" and r.attack == "clean"]
    mean = sum(r.rounds[-1]["metrics"]["auroc"] for r in clean) / 2
    assert next(t for t in lines if t["name"] == "caac, clean")["y"][-1] == pytest.approx(mean, abs=1e-4)
    anomalies = list(anomaly_over_time(runs))
    assert len(anomalies) == 4, "the runs whose rule scores clients"
    assert all(len(figure.data) == 6 for figure in anomalies)
    partitions = list(who_holds_what(runs))
    assert len(partitions) == 2, "one a seed"
    held = sum(sum(trace["y"]) for trace in partitions[0].data)
    assert held == sum(map(sum, runs[0].record["clients"].values()))


def test_the_page_needs_nothing_from_outside_and_trusts_no_name(runs, tmp_path):
    path = write_page(runs, tmp_path / "deep" / "page.html", "a <b>bold</b> </script> title")
    text = path.read_text()
    assert "a &lt;b&gt;bold" in text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text.split("<script>")[0])
    data = re.search(r'id="figures">(.*?)</script>', text, re.S)
    assert len(json.loads(data.group(1))) == 7
    assert not list(path.parent.glob("*.tmp"))
