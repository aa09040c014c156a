"""The FedBNP document's statistics against scipy and against counts by hand."""

import pytest
from scipy import stats

from wardround.analysis import load_runs
from wardround.analysis.measures import measure_all
from wardround.protocols.fedbnp.statistics import accuracy_table, detection_table, section

OURS = {42: 0.80, 123: 0.83, 456: 0.79, 789: 0.85, 1000: 0.81}
THEIRS = {
    "fedavg": {42: 0.70, 123: 0.75, 456: 0.74, 789: 0.72, 1000: 0.71},
    "fedprox": {42: 0.79, 123: 0.84, 456: 0.78, 789: 0.84, 1000: 0.83},
}


@pytest.fixture
def measured(make_run):
    def caught(client, number):
        return client == "hospital-0" and number >= 10  # of rounds 5 to 20 the last eleven

    for method, accuracies in {"fedbnp": OURS, **THEIRS}.items():
        for seed, accuracy in accuracies.items():
            flags = caught if method == "fedbnp" else lambda client, number: None
            make_run(method, "sign-flip", seed, accuracy=accuracy, flags=flags)
    return measure_all(load_runs([make_run.root]))


def test_five_seeds_give_corrected_t_tests_on_accuracy(measured):
    table = accuracy_table(measured, "fedbnp")
    rows = {row[2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert set(rows) == {"fedavg", "fedprox"}
    for method, theirs in THEIRS.items():
        expected = stats.ttest_rel(list(OURS.values()), list(theirs.values())).pvalue
        row = rows[method]
        assert float(row["paired t p"]) == pytest.approx(expected, rel=0.01)
        assert float(row["Bonferroni"]) == pytest.approx(min(1, 2 * expected), abs=1e-4)
        assert row["seeds × folds"] == 5
    assert rows["fedavg"]["improvement (points)"] == "+9.20"


def test_attack_success_is_what_the_detection_misses(measured):
    table = detection_table(measured)
    rows = {row[2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["fedbnp"]["recall"] == pytest.approx(11 / 16)
    assert rows["fedbnp"]["ASR = 1 − recall"] == pytest.approx(5 / 16)
    assert rows["fedbnp"]["precision"] == 1.0
    assert rows["fedavg"]["ASR = 1 − recall"] is None
    assert rows["fedbnp"]["rounds to target"] is None, "no clean FedAvg, no target"


def test_the_target_is_a_share_of_fedavgs_clean_accuracy(make_run):
    make_run("fedavg", accuracy=0.8)
    make_run("fedbnp", accuracy=0.73)
    make_run("fedbnp", accuracy=0.71, seed=1)
    make_run("rl", accuracy=0.71)
    table = detection_table(measure_all(load_runs([make_run.root])))
    reached = {row[2]: row[-1] for row in table.rows}
    assert reached == {"fedavg": "1.0 (1 of 1)", "fedbnp": "1.0 (1 of 2)", "rl": "never"}


def test_runs_without_the_rule_or_with_nothing_beside_it_have_no_section(make_run):
    make_run("fedavg")
    make_run("caac")
    assert section(measure_all(load_runs([make_run.root]))) is None
    make_run("fedbnp")
    keys = [table.key for table in section(measure_all(load_runs([make_run.root]))).tables]
    assert keys == ["fedbnp-accuracy", "fedbnp-detection"]


def test_the_folds_of_a_cross_validation_are_pooled_into_one_test(make_run):
    ours, theirs = list(OURS.values()), list(THEIRS["fedavg"].values())
    for method, accuracies in (("fedbnp", ours), ("fedavg", theirs)):
        for fold, accuracy in enumerate(accuracies):
            folds = {"name": "dirichlet", "alpha": 0.5, "cross_validation": 5, "fold": fold}
            make_run(method, "sign-flip", 42, accuracy=accuracy, partition=folds)
    measured = measure_all(load_runs([make_run.root]))
    [row] = accuracy_table(measured, "fedbnp").rows
    assert row[3] == 5
    assert "fold" not in row[0]
    assert float(row[8]) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=0.01)
    # A run is compared with the other rule's run of its own fold, whatever the order of the folders.
    shifted = accuracy_table(list(reversed(measured)), "fedbnp").rows[0]
    assert shifted[8] == row[8]
    assert {row[2]: row[3] for row in detection_table(measured).rows} == {"fedavg": 5, "fedbnp": 5}
