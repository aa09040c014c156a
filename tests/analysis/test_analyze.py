"""Tables in three notations, the DOS paper's layout, comparisons, and the files."""

import csv
import io
import json

import pytest

from wardround.analysis import analyze, load_runs, write
from wardround.analysis.rendering import Table
from wardround.errors import ConfigError
from wardround.protocols import papers

DOS_ATTACKS = [
    {"attack": "none"},
    {"attack": "label-flip", "share": 0.1},
    {"attack": "mix", "share": 0.4, "attack__parts": [{"name": "noise"}, {"name": "label-flip"}]},
    {"attack": "noise", "share": 0.4},
    {"attack": "mix", "share": 0.4, "attack__parts": [{"name": "noise"}, {"name": "scaling"}]},
    {"attack": "crafted", "share": 0.4},
]
TEN = {f"hospital-{i}": [10, 10] for i in range(10)}


def table_of(analysis, key):
    return next(table for table in analysis.tables if table.key == key)


@pytest.fixture
def three_seeds(make_run):
    for seed in range(3):
        for method, auroc in (("caac", 0.8), ("krum", 0.7), ("fedavg", 0.75)):
            make_run(method, seed=seed, auroc=auroc + 0.01 * seed)
            make_run(method, seed=seed, auroc=auroc - 0.1 + 0.02 * seed, attack="sign-flip")
    return load_runs([make_run.root])


@pytest.mark.slow
def test_means_and_deviations_stand_in_the_table(three_seeds):
    table = table_of(analyze(three_seeds), "performance")
    row = next(row for row in table.rows if row[1] == "clean" and row[2] == "caac")
    assert row[3:5] == [3, "0.810 ± 0.010"]
    row = next(row for row in table.rows if row[1] != "clean" and row[2] == "caac")
    assert row[list(table.columns).index("ΔAUROC")] == "0.090 ± 0.010"


@pytest.mark.slow
def test_comparisons_say_what_three_seeds_can_show(three_seeds):
    found = analyze(three_seeds, papers=papers())
    assert found.reference == "caac"
    assert {(c.attack, c.other) for c in found.comparisons} == {
        (attack, other) for attack in ("clean", "sign-flip 25 % from round 5") for other in ("krum", "fedavg")
    }
    text = table_of(found, "comparisons").markdown()
    assert text.count("3 seeds: smallest possible p is 0.25") == 4
    assert analyze(three_seeds, "krum").reference == "krum"
    with pytest.raises(ConfigError, match="--reference: no run of method 'kram'; did you mean 'krum'"):
        analyze(three_seeds, "kram")


def test_the_dos_papers_table_with_its_figures_beside_ours(make_run):
    for method, auroc in (("dos", 0.9), ("fedavg", 0.6)):
        for scenario in DOS_ATTACKS:
            make_run(method, held=TEN, start=1, curve=lambda n, a=auroc: a if n > 10 else a - 0.2, **scenario)
    table = table_of(analyze(load_runs([make_run.root]), papers=papers()), "dos-table-1")
    assert table.columns == ["", "No Attack", "Label Flip 10 %", "Mix Attack 40 %", "Noise 40 %", "Noise & Scaled 40 %",
                             "Avg", "Crafted 40 %"]  # fmt: skip
    assert [row[0] for row in table.rows] == ["FedAvg", "DOS"]
    # The mean over all rounds, half of them 0.2 lower; the crafted attack's is the last round's.
    assert table.rows[1] == ["DOS", "0.800 (0.70)", "0.800 (0.69)", "0.800 (0.68)", "0.800 (0.69)", "0.800 (0.67)",
                             "0.800 (0.68)", "0.900 (0.65)"]  # fmt: skip
    assert table.rows[0][-1] == "0.600", "the paper has no figure for FedAvg there"


def test_the_dos_papers_proportions(make_run):
    for share in (0.1, 0.3, 0.6):
        make_run("dos", held=TEN, attack="noise", share=share, auroc=0.7)
    table = table_of(analyze(load_runs([make_run.root]), papers=papers()), "dos-proportion")
    assert [(row[0], row[3]) for row in table.rows] == [("10 %", 0.695), ("30 %", 0.696), ("60 %", 0.554)]


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


def test_notation_is_escaped_where_it_must_be():
    table = Table(
        "k", "50 % of a_b & c", ["name", "ΔAUROC ± sd"], [["a|b_c", 0.12345], ["x", None]], ("note #1",)
    )
    assert "| a\\|b_c | 0.123 |" in table.markdown()
    assert "| :--- | ---: |" in table.markdown()
    assert table.csv() == "name,ΔAUROC ± sd\na|b_c,0.12345\nx,\n"
    latex = table.latex()
    assert r"\caption{50 \% of a\_b \& c. note \#1}" in latex
    assert r"name & $\Delta$AUROC $\pm$ sd \\" in latex
    assert r"a|b\_c & 0.123 \\" in latex
    assert r"\begin{tabular}{lr}" in latex


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
