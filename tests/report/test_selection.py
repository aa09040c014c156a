"""A page has a bounded size, however many runs it is about, and says what it leaves out."""

import importlib
import json
import re

import pytest

from wardround.analysis import load_runs
from wardround.report import selection
from wardround.report.contents import collect
from wardround.report.figures import auroc_over_rounds
from wardround.report.page import page
from wardround.report.selection import Limits, select

METHODS = ("fedavg", "krum", "median", "rfa", "trimmed-mean")
ATTACKS = ("none", "alie", "ipm", "sign-flip")
ROWS = 5


@pytest.fixture
def made(make_run):
    """Write runs of so many settings, methods, attacks and seeds; the later a method or attack, the less it keeps."""

    def make(settings, methods, attacks, seeds):
        for alpha in range(1, settings + 1):
            for m, method in enumerate(METHODS[:methods]):
                for a, attack in enumerate(ATTACKS[:attacks]):
                    for seed in range(seeds):
                        kept = 0.9 - 0.01 * m - 0.05 * a + 0.001 * seed
                        make_run(method, attack, seed, kept, rounds=2, start=2, alpha=float(alpha))
        return load_runs([make_run.root])

    return make


@pytest.fixture
def small_limits(monkeypatch):
    """Limits that a few runs reach."""
    narrow, broad = Limits(2, 2, 1, 2), Limits(2, 3, 2, 2)
    parts = ("contents", "page", "opening", "evidence_figure", "comparison_figures", "html_tables")
    for module in [importlib.import_module(f"wardround.report.{name}") for name in parts]:
        for name, value in (("NARROW", narrow), ("BROAD", broad), ("ROWS_SHOWN", ROWS)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("wardround.report.opening.ANSWERS_SHOWN", 2)
    monkeypatch.setattr("wardround.report.run_figures.RUNS_SHOWN", 2)


def size_of(text):
    """Rows, answers, figures, curves and numbers on a page."""
    body, rest = text.split("<script>", 1)
    (data,) = re.findall(r'id="figures">(.*?)</script>', rest, re.S)
    figures = json.loads(data)
    numbers = re.findall(r"[0-9.]+", data)
    answers, rows = body.count('<section class="answer'), body.count("<tr>")
    return rows, answers, len(figures), sum(len(figure["data"]) for figure in figures), len(numbers)


@pytest.mark.slow
def test_more_settings_rules_and_seeds_make_no_larger_page(made, small_limits):
    runs = made(3, 5, 4, 2)
    few = [run for run in runs if run.method in METHODS[:4] and run.config["partition"]["alpha"] < 3]
    small, large = (size_of(page(collect(some), "runs")) for some in (few, runs))
    assert (len(few), len(runs)) == (64, 120)
    assert large[1:4] == small[1:4]
    # Beyond the limits only tables of one row per method grow, up to theirs.
    assert large[0] <= small[0] + ROWS
    assert large[4] <= 1.05 * small[4]


def test_the_page_says_what_it_leaves_out_and_where_it_is(made, small_limits):
    text = page(collect(made(3, 5, 4, 1)), "many")
    rules = "rules (those with the best mean, and FedAvg)"
    attacks = "attacks (those that leave least on average)"
    assert f"per rule show 2 of 3 settings, 2 of 5 {rules} and 1 of 3 {attacks}." in text
    assert f"heat maps show 2 of 3 settings, 3 of 5 {rules} and 2 of 3 {attacks}." in text
    assert selection.ELSEWHERE in text
    assert "Answers for 2 of 3 settings" in text
    assert f"The first {ROWS} of 60 rows; `wardround analyze RUNS --out TABLES` writes all of them." in text


def test_long_tables_are_folded(made, monkeypatch):
    contents = collect(made(2, 2, 2, 1))
    assert "<h3>dirichlet α 1</h3>" in page(contents, "short")
    monkeypatch.setattr("wardround.report.page.ROWS_UNFOLDED", 5)
    assert "<details><summary>dirichlet α 1 <small>4 rows</small></summary>" in page(contents, "long")


def test_a_page_of_few_runs_leaves_nothing_out(made):
    contents = collect(made(1, 3, 2, 2))
    assert not contents.omitted
    text = page(contents, "few")
    assert "writes all of them" not in text
    assert selection.ELSEWHERE not in text


def test_the_best_rules_and_the_worst_attacks_are_shown(made):
    chosen = select(made(1, 5, 4, 2), Limits(settings=1, methods=3, attacks=1, seeds=1))
    assert {run.method for run in chosen.runs} == {"fedavg", "krum", "median"}
    assert {run.config["attack"]["name"] for run in chosen.runs} == {"none", "sign-flip"}
    assert {run.seed for run in chosen.runs} == {0}
    assert len(chosen.runs) == 6


def test_fedavg_is_shown_though_it_is_the_worst(make_run):
    for kept, method in ((0.5, "fedavg"), (0.8, "krum"), (0.9, "median")):
        make_run(method, auroc=kept, rounds=2)
    chosen = select(load_runs([make_run.root]), Limits(1, 2, 1, 1))
    assert {run.method for run in chosen.runs} == {"fedavg", "median"}


def test_curves_of_many_rounds_have_a_bounded_number_of_points(make_run, monkeypatch):
    monkeypatch.setattr("wardround.report.figures.POINTS_SHOWN", 5)
    make_run("krum", rounds=17)
    (figure,) = auroc_over_rounds(load_runs([make_run.root]))
    assert figure.data[0]["x"] == [1, 5, 9, 13, 17]
    assert "Curves have 5 points, spread over all rounds." in figure.caption
