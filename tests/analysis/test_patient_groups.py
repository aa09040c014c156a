"""Thresholds, calibration and patient groups in the analysis."""

import pytest

from wardround.analysis import analyze, load_runs
from wardround.federation.scoring import gaps_between
from wardround.records import EvaluationDetails, Reason

GROUPS = {
    "sex": {"female": {"n": 60, "auroc": 0.9, "sensitivity": 0.8},
            "male": {"n": 40, "auroc": 0.7, "sensitivity": 0.75}},
    "age": {"<40": {"n": 7, "auroc": None, "reason": "7 rows, fewer than 20"}, "40-59": {"n": 93, "auroc": 0.8}},
}  # fmt: skip
FIGURES = {"brier": 0.2, "ece": 0.1, "threshold": 0.3, "sensitivity": 0.7, "specificity": 0.6}


def details(groups):
    return EvaluationDetails(groups=groups, gaps=gaps_between(groups))


def test_gaps_and_the_worst_group_are_measures_of_a_run(make_run):
    make_run(details=details(GROUPS), figures=FIGURES)
    make_run(seed=1)
    with_groups, without = analyze(load_runs([make_run.root])).measured
    assert with_groups["group_gap_auroc"] == pytest.approx(0.2), "of sexes; one age band has no figure"
    assert with_groups["group_gap_sensitivity"] == pytest.approx(0.05)
    assert with_groups["worst_group_auroc"] == 0.7
    assert {name: with_groups[name] for name in FIGURES} == FIGURES
    assert without["group_gap_auroc"] is None
    assert without["brier"] is None


def test_tables_have_the_mean_over_seeds_and_why_a_figure_is_missing(make_run, table_of):
    other = {"sex": {"female": {"n": 50, "auroc": 0.8}, "male": {"n": 50, "auroc": 0.8}}}
    make_run(details=details(GROUPS), figures=FIGURES)
    make_run(seed=1, details=details(other), figures={**FIGURES, "brier": 0.3})
    analysis = analyze(load_runs([make_run.root]))
    groups = table_of(analysis, "patient-groups")
    rows = {tuple(row[3:5]): row for row in groups.rows}
    assert rows["sex", "female"][5:7] == ["55", "0.850"]
    assert rows["age", "<40"][6] is None
    assert "7 rows, fewer than 20" in " ".join(groups.notes)
    (gap,) = [row for row in table_of(analysis, "group-gaps").rows if row[3] == "sex"]
    assert gap[4] == "0.100", "0.2 and 0"
    (line,) = table_of(analysis, "calibration").rows
    assert dict(zip(table_of(analysis, "calibration").columns, line, strict=True))["Brier score"] == "0.250"
    assert "Gaps between patient groups" in analysis.markdown()


def test_runs_without_groups_have_no_such_tables(make_run):
    make_run()
    keys = [table.key for table in analyze(load_runs([make_run.root])).tables]
    assert not {"patient-groups", "group-gaps", "calibration"} & set(keys)


def test_one_class_is_not_a_broken_model(make_run):
    reason = Reason("one-class", "all 9 rows are of class 'well'")
    make_run(curve=lambda number: None, figures={"loss": 0.5}, details=EvaluationDetails({"auroc": reason}))
    (run,) = load_runs([make_run.root])
    assert run.final("auroc") is None
    assert run.broken_rounds == 0
    assert run.curve == []
    assert run.why_no_auroc == "all 9 rows are of class 'well'"


def test_no_rows_is_not_a_broken_model_either(make_run):
    reason = Reason("no-rows", "there are no rows to measure on")
    make_run(curve=lambda number: None, details=EvaluationDetails({"auroc": reason}))
    (run,) = load_runs([make_run.root])
    assert run.final("auroc") is None
    assert run.broken_rounds == 0
