"""Figures of calibration and patient groups."""

import pytest

from wardround.analysis import load_runs
from wardround.records import CalibrationBin, EvaluationDetails
from wardround.report.calibration import calibration_curves, figures_by_group
from wardround.report.contents import collect


def details(observed, female):
    groups = {
        "sex": {"female": {"n": 60, "auroc": female}, "male": {"n": 4, "auroc": None, "reason": "4 rows"}},
        "age": {"<40": {"n": 64, "auroc": 0.75}},
    }
    bins = (CalibrationBin(0.0, 0.1, 10, 0.05, observed), CalibrationBin(0.8, 0.9, 30, 0.85, 0.5))
    return EvaluationDetails(calibration=bins, groups=groups)


@pytest.fixture
def runs(make_run):
    for seed in (0, 1):
        make_run("caac", seed=seed, details=details(0.1 * seed, 0.8 + 0.1 * seed), figures={"brier": 0.2})
        make_run("fedavg", seed=seed, details=details(0.4, 0.6))
        make_run("caac", seed=seed, attack="sign-flip", details=details(1.0, 0.5))
    return load_runs([make_run.root])


def test_the_curve_pools_the_seeds_without_attack(runs):
    (figure,) = calibration_curves(runs)
    curves = {trace["name"]: trace for trace in figure.data}
    assert curves["caac"]["x"] == [0.05, 0.85]
    assert curves["caac"]["y"] == [0.05, 0.5], "the mean of 0 and 0.1; runs under attack are left out"
    assert curves["caac"]["text"] == ["20", "60"]
    assert curves["as it should be"]["y"] == [0, 1]
    assert "caac 0.200" in figure.caption
    assert "fedavg" in curves
    assert "without attack" in figure.title


def test_groups_have_a_mark_per_method_and_say_who_has_none(runs):
    (figure,) = figures_by_group(runs)
    marks = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in figure.data}
    assert marks["caac"] == {"sex: female (60)": 0.85, "age: <40 (64)": 0.75}
    assert marks["fedavg"]["sex: female (60)"] == 0.6
    assert "sex: male" in figure.caption


def test_where_all_runs_are_attacked_the_attack_is_named(make_run):
    make_run(attack="sign-flip", details=details(0.1, 0.9))
    (figure,) = calibration_curves(load_runs([make_run.root]))
    assert "sign-flip" in figure.title


@pytest.mark.slow
def test_runs_of_an_older_version_have_no_such_figures_and_others_are_on_the_page(runs, make_run):
    keys = [figure.key for figure in collect(runs).all_figures]
    assert {"calibration-0", "groups-0"} <= set(keys)
    make_run.root.rename(make_run.root.with_name("others"))
    make_run()
    old = load_runs([make_run.root])
    assert not list(calibration_curves(old))
    assert not list(figures_by_group(old))
