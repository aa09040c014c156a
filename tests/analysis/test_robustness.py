"""Losses against outside references, harm and suppression, on runs whose numbers are made by hand."""

import csv
import io

import pytest

from wardround.analysis import analyze, load_runs, measure_all, write
from wardround.analysis.robustness import MARGIN, robustness_tables, standings


def found(make_run):
    return {
        (one.method, one.attack.split()[0]): one for one in standings(measure_all(load_runs([make_run.root])))
    }


def rows_of(table):
    return {row["method"]: row for row in csv.DictReader(io.StringIO(table.csv()))}


@pytest.fixture
def matrix(make_run):
    """Four rules and the oracle, clean and under two attacks, three seeds."""
    clean = {"fedavg": 0.80, "median": 0.70, "krum": 0.82, "caac": 0.79}
    attacked = {
        "sign-flip": {"fedavg": 0.60, "median": 0.68, "krum": 0.50, "caac": 0.75, "oracle": 0.78},
        "alie": {"fedavg": 0.70, "median": 0.66, "krum": 0.69, "caac": 0.699, "oracle": 0.79},
    }
    for seed in range(3):
        for method, auroc in clean.items():
            make_run(method, seed=seed, auroc=auroc + 0.01 * seed)
        for attack, reached in attacked.items():
            for method, auroc in reached.items():
                make_run(method, seed=seed, auroc=auroc + 0.01 * seed + (0.002 * seed if method == "caac" else 0),
                         attack=attack)  # fmt: skip
    return make_run


@pytest.mark.slow
def test_losses_are_paired_with_the_oracle_of_the_same_attack_and_seed(matrix):
    caac = found(matrix)["caac", "sign-flip"].against_oracle
    assert caac.n == 3
    assert caac.difference == pytest.approx(0.03 - 0.002)
    assert caac.low < caac.difference < caac.high
    assert found(matrix)["krum", "sign-flip"].against_oracle.difference == pytest.approx(0.28)


@pytest.mark.slow
def test_without_attack_fedavg_stands_in_for_the_oracle(matrix):
    assert found(matrix)["caac", "clean"].against_oracle.difference == pytest.approx(0.01)
    assert found(matrix)["fedavg", "clean"].against_oracle.difference == 0


@pytest.mark.slow
def test_the_best_clean_rule_is_one_for_all_seeds(matrix):
    assert found(matrix)["caac", "alie"].against_clean.difference == pytest.approx(0.82 - 0.701)
    assert found(matrix)["krum", "clean"].against_clean.difference == 0


@pytest.mark.slow
def test_the_oracle_is_never_a_rule(matrix):
    assert {method for method, _ in found(matrix)} == {"fedavg", "median", "krum", "caac"}
    analysis = analyze(load_runs([matrix.root]))
    assert "oracle" not in analysis.ranking.methods
    assert "oracle" not in [s.method for r in analysis.recommendations for s in r.standings]


@pytest.mark.slow
def test_harm_is_worse_than_no_defence_by_more_than_the_margin(matrix):
    told = found(matrix)
    assert told["krum", "sign-flip"].harms is True
    assert told["krum", "clean"].harms is False
    assert told["caac", "alie"].harms is False, f"0.701 against 0.70: within {MARGIN}"
    assert told["fedavg", "alie"].harms is False
    assert told["krum", "sign-flip"].below_both is True
    assert told["median", "clean"].below_both is False, "it is the median"


@pytest.mark.slow
def test_one_row_per_rule(matrix):
    table, _ = robustness_tables(measure_all(load_runs([matrix.root])))
    rows = rows_of(table)
    assert next(iter(rows)) == "caac", "the smallest mean loss first"
    krum = rows["krum"]
    assert float(krum["mean loss"]) == pytest.approx((0.28 + 0.10) / 2)
    assert float(krum["worst loss"]) == pytest.approx(0.28)
    assert "sign-flip" in krum["worst in"]
    assert float(krum["harm"]) == pytest.approx(2 / 3)
    assert float(krum["below both"]) == pytest.approx(1 / 3)
    assert float(krum["clean loss"]) == 0
    assert int(krum["settings"]) == 3
    assert int(krum["seeds"]) == 3


def test_suppression_and_false_alarms_stand_beside_the_losses(make_run):
    out = lambda client, number: 0.0 if client == "hospital-3" else 0.3  # noqa: E731
    make_run("krum", auroc=0.7, weights=out, flags=lambda client, number: client == "hospital-3")
    make_run("krum", auroc=0.7, weights=out, attack="alie")
    row = rows_of(robustness_tables(measure_all(load_runs([make_run.root])))[0])["krum"]
    assert float(row["suppressed clients"]) == pytest.approx((1 / 4 + 1 / 3) / 2)
    assert float(row["suppressed of an outcome"]) == pytest.approx((40 / 100 + 40 / 90) / 2)
    assert float(row["FPR"]) == pytest.approx(1 / 8)


def test_what_is_missing_is_said(make_run):
    make_run("krum", auroc=0.7, attack="alie")
    table, every = robustness_tables(measure_all(load_runs([make_run.root])))
    (row,) = rows_of(table).values()
    assert row["mean loss"] == row["harm"] == row["clean loss"] == ""
    assert "aggregator 'oracle'" in table.notes[-1]
    assert len(every.rows) == 1


def test_nobody_attacks_no_table(make_run):
    make_run("krum", auroc=0.7)
    assert robustness_tables(measure_all(load_runs([make_run.root])))[0] is None


@pytest.mark.slow
def test_both_tables_are_written_as_csv(matrix, tmp_path):
    write(analyze(load_runs([matrix.root])), tmp_path / "tables")
    settings = list(csv.DictReader((tmp_path / "tables" / "robustness-settings.csv").open()))
    assert (tmp_path / "tables" / "robustness.csv").exists()
    assert len(settings) == 4 * 3
    one = next(r for r in settings if r["method"] == "krum" and r["attack"].startswith("alie"))
    assert float(one["loss against FedAvg"]) == pytest.approx(0.01)
    assert one["harm"] == "1"


def test_figures_of_the_best_round(make_run):
    make_run("krum", curve=lambda number: 0.9 - 0.01 * abs(number - 7))
    (last,), (best,) = load_runs([make_run.root]), load_runs([make_run.root], at="best")
    assert last.final("auroc") == pytest.approx(0.77)
    assert best.final("auroc") == pytest.approx(0.90)
    assert "best on validation" in analyze([best]).notes[0]
    assert not any("best on validation" in note for note in analyze([last]).notes)
