"""Every measure on runs whose numbers are made by hand."""

import pytest

from wardround.analysis import compare, load_runs, measure_all


def measured(make_run):
    return {
        (m.run.method, m.run.attack.split()[0], m.run.seed): m
        for m in measure_all(load_runs([make_run.root]))
    }


def test_delta_is_against_the_clean_run_of_the_same_seed(make_run):
    make_run(seed=0, auroc=0.80, accuracy=0.8)
    make_run(seed=1, auroc=0.90)
    make_run(seed=0, attack="sign-flip", auroc=0.70, accuracy=0.6)
    make_run(seed=1, attack="sign-flip", auroc=0.85)
    make_run("krum", seed=0, attack="sign-flip", auroc=0.1)
    found = measured(make_run)
    assert found["caac", "sign-flip", 0]["delta_auroc"] == pytest.approx(0.10)
    assert found["caac", "sign-flip", 1]["delta_auroc"] == pytest.approx(0.05)
    assert found["caac", "sign-flip", 0]["delta_auprc"] == pytest.approx(0.05)
    assert found["caac", "sign-flip", 0]["robustness_index"] == pytest.approx(0.75)
    assert found["caac", "clean", 0]["delta_auroc"] is None
    assert found["krum", "sign-flip", 0]["delta_auroc"] is None, "krum has no clean run"


def test_another_alpha_is_another_setting(make_run):
    make_run(alpha=1.0, auroc=0.9)
    make_run(alpha=0.1, attack="alie", auroc=0.7)
    (attacked,) = [m for m in measure_all(load_runs([make_run.root])) if m.run.attack != "clean"]
    assert attacked["delta_auroc"] is None


def test_rounds_to_90_percent_of_the_best_clean_run_of_any_method(make_run):
    make_run("fedavg", curve=lambda n: 0.5 + 0.02 * n)  # best 0.9 in round 20
    make_run("caac", curve=lambda n: 0.4 + 0.02 * n)  # 0.81 = 0.9 · 0.9 is passed in round 21: never
    make_run("krum", curve=lambda n: 0.51 + 0.02 * n, attack="alie")  # 0.81 in round 15
    found = measured(make_run)
    assert found["fedavg", "clean", 0]["rounds_to_90"] == 16
    assert found["caac", "clean", 0]["rounds_to_90"] is None
    assert found["krum", "alie", 0]["rounds_to_90"] == 15


def test_rates_windows_and_latency(make_run):
    # hospital-0 attacks from round 5 of 30 on and is flagged from round 8 on; hospital-1 always is.
    make_run(
        attack="sign-flip", rounds=30, flags=lambda c, n: (c == "hospital-0" and n >= 8) or c == "hospital-1",
        weights=lambda c, n: 0.0 if c == "hospital-0" and n >= 5 else 0.25,
    )  # fmt: skip
    (m,) = measure_all(load_runs([make_run.root]))
    assert m["flag_tpr"] == pytest.approx(23 / 26)
    assert m["flag_fpr"] == pytest.approx(1 / 3)
    assert m["flag_latency"] == 3
    assert m["flag_tpr_onset"] == pytest.approx(7 / 10)
    assert m["flag_tpr_late"] == 1.0
    assert m["flag_fpr_before"] == pytest.approx(1 / 3)
    assert m["low_tpr"] == 1.0
    assert m["low_fnr"] == m["low_fpr"] == m["low_latency"] == 0


def test_overhead_is_against_fedavg_of_the_setting(make_run):
    make_run("fedavg", aggregate=0.002)
    make_run("caac", aggregate=0.005)
    found = measured(make_run)
    assert found["caac", "clean", 0]["aggregate_ms"] == pytest.approx(5.0)
    assert found["caac", "clean", 0]["aggregate_vs_fedavg"] == pytest.approx(2.5)
    assert found["caac", "clean", 0]["memory_vs_fedavg"] == 1.0


def test_false_alarms_under_benign_drift_count_honest_drifting_clients_once_they_move(make_run):
    drift = {"clients": ["hospital-0", "hospital-1"], "start": 10, "size": 1.0, "ramp": 5}
    make_run(
        drift=drift, attack="sign-flip", flags=lambda c, n: c == "hospital-1" and n % 2 == 0,
        weights=lambda c, n: 0.0 if c == "hospital-1" and n > 15 else 0.25,
    )  # fmt: skip
    (m,) = measure_all(load_runs([make_run.root]))
    assert m.run.drifting == ["hospital-1"], "hospital-0 is Byzantine"
    assert m["drift_flag_fpr"] == 0.5
    assert m["drift_fpr"] == 0.5


def test_a_broken_model_is_chance_and_not_left_out(make_run):
    make_run(curve=lambda n: 0.9 if n <= 5 else None, rounds=20)
    (m,) = measure_all(load_runs([make_run.root]))
    assert m["auroc"] == 0.5
    assert m["mean_auroc"] == pytest.approx((5 * 0.9 + 15 * 0.5) / 20)
    assert m["broken_rounds"] == 15
    (line,) = compare([m.run])
    assert (line.auroc, line.unfinished) == (0.5, 0)


def test_unfinished_runs_are_left_out(make_run):
    make_run(status="stopped")
    assert measure_all(load_runs([make_run.root])) == []


def test_broken_clients_are_counted_apart(make_run):
    make_run(
        fault="unit-error", broken=["hospital-3"], attack="alie", start=1, rounds=10,
        flags=lambda client, number: client == "hospital-3" and number > 4,
        weights=lambda client, number: 0.0 if client == "hospital-3" else 0.3,
    )  # fmt: skip
    (m,) = measure_all(load_runs([make_run.root]))
    assert m["fault_flag_tpr"] == pytest.approx(6 / 10)
    assert m["fault_low_tpr"] == 1.0
    assert m["flag_tpr"] == m["flag_fpr"] == m["low_fpr"] == 0.0
    assert m["suppressed_clients"] == m["suppressed_patients"] == m["suppressed_outcome"] == 0.0
