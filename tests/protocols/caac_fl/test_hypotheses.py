"""Verdicts: what each rule of decision does with runs that are made to meet it."""

import pytest

from wardround.analysis import load_runs, measure_all
from wardround.protocols.caac_fl.hypotheses import decide_hypotheses, preset_names, section

MANY = range(8)


def verdicts(make_run):
    return {v.key: v for v in decide_hypotheses(measure_all(load_runs([make_run.root])))}


def claims(verdict, measure):
    return [claim for claim in verdict.claims if claim.measure == measure]


def low(client, number):
    return 0.0 if client == "hospital-2" else 0.25


def test_three_seeds_cannot_support_however_clear_they_are(make_run):
    for seed in range(3):
        make_run("caac", seed=seed, auroc=0.90 + 0.001 * seed)
        make_run("krum", seed=seed, auroc=0.60 + 0.002 * seed, weights=low)
    verdict = verdicts(make_run)["H1"]
    assert verdict.verdict == "undecided"
    assert "3 seeds: smallest possible p is 0.25" in verdict.reason
    assert {claim.outcome for claim in verdict.claims} == {"undecided"}


def test_enough_clear_seeds_support(make_run):
    for seed in MANY:
        make_run("caac", seed=seed, auroc=0.90 + 0.001 * seed)
        make_run("krum", seed=seed, auroc=0.60 + 0.002 * seed, weights=low)
    verdict = verdicts(make_run)["H1"]
    assert verdict.verdict == "supported"
    assert len(verdict.claims) == 3
    assert all(claim.holm_p == pytest.approx(3 * 2 / 2**8) for claim in verdict.claims)
    assert all(claim.bonferroni_p == pytest.approx(3 * 2 / 2**8) for claim in verdict.claims)


def test_equal_within_a_hundredth_counts_as_not_worse(make_run):
    for seed in MANY:
        make_run("caac", seed=seed, auroc=0.800 - 0.0001 * seed)
        make_run("krum", seed=seed, auroc=0.805, weights=low)
    (auroc,) = claims(verdicts(make_run)["H1"], "auroc")
    assert auroc.outcome == "supported"
    assert auroc.margin == 0.01


def test_clearly_worse_is_not_supported_even_with_three_seeds(make_run):
    for seed in range(3):
        make_run("caac", seed=seed, auroc=0.60 + 0.001 * seed)
        make_run("fltrust", seed=seed, auroc=0.90 + 0.002 * seed, weights=low)
    verdict = verdicts(make_run)["H1"]
    assert verdict.verdict == "not supported"
    assert "clearest against it" in verdict.reason
    assert claims(verdict, "auroc")[0].outcome == "contradicted"


def test_rules_that_are_not_robust_are_no_rivals_in_h1(make_run):
    for method in ("caac", "fedavg"):
        make_run(method)
    assert verdicts(make_run)["H1"].claims == ()
    assert verdicts(make_run)["H1"].verdict == "undecided"


def test_only_the_most_heterogeneous_split_counts(make_run):
    for alpha, auroc in ((0.1, 0.9), (1.0, 0.1)):
        make_run("caac", alpha=alpha, auroc=auroc)
        make_run("krum", alpha=alpha)
    assert {claim.setting for claim in verdicts(make_run)["H1"].claims} == {
        "synthetic · dirichlet α 0.1 · 4 clients"
    }


@pytest.mark.slow
def test_missing_most_attackers_contradicts_h2_and_never_finding_them_h3(make_run):
    for seed in range(3):
        for attack in ("none", "sign-flip"):
            make_run("caac", seed=seed, attack=attack, flags=lambda c, n: c == "hospital-0" and n == 5)
            make_run("fltrust", seed=seed, attack=attack)
    decided = verdicts(make_run)
    (missed,) = claims(decided["H2"], "flag_fnr")
    assert (missed.outcome, missed.ours, missed.theirs) == ("contradicted", pytest.approx(15 / 16), 0.5)
    (late,) = claims(decided["H3"], "flag_latency")
    assert (late.outcome, late.ours) == ("contradicted", 16), (
        "never found counts as after the end: 20 − 5 + 1"
    )
    assert decided["H2"].verdict == decided["H3"].verdict == "not supported"


@pytest.mark.slow
def test_a_rule_that_ignores_nearly_everyone_is_no_detector(make_run):
    def only_one(client, number):
        return 1.0 if client == "hospital-3" else 0.0

    for method, weights in (("caac", lambda c, n: 0.25), ("krum", only_one), ("fltrust", low)):
        for attack in ("none", "sign-flip"):
            make_run(method, attack=attack, weights=weights)
    decided = verdicts(make_run)
    assert {claim.other for claim in claims(decided["H2"], "low_fnr")} == {"fltrust"}
    assert {claim.other for claim in claims(decided["H2"], "delta_auroc")} == {"fltrust", "krum"}


def test_indiscriminate_rules_take_no_part_in_missed_attackers_and_latency(make_run):
    """Suppressing more than half of the honest clients is no detection; suppressing just half is still compared."""
    honest = {f"hospital-{i}": [10, 10] for i in range(5)}  # hospital-0 attacks, four are honest

    def suppressing(count):
        ignored = {f"hospital-{i}" for i in range(count + 1)}
        return lambda client, number: 0.0 if client in ignored else 0.2

    for method, weights in (
        ("caac", lambda c, n: 0.2),
        ("krum", suppressing(3)),
        ("fltrust", suppressing(2)),
    ):
        make_run(method, attack="sign-flip", share=0.2, held=honest, weights=weights)
    decided = verdicts(make_run)
    assert {claim.other for claim in claims(decided["H2"], "low_fnr")} == {"fltrust"}
    assert {claim.other for claim in claims(decided["H3"], "low_latency")} == {"fltrust"}


def test_a_gradual_attack_is_no_abrupt_one(make_run):
    for method in ("caac", "fltrust"):
        for attack in ("sign-flip", "slow-drift"):
            make_run(method, attack=attack)
    decided = verdicts(make_run)
    assert {claim.attack.split()[0] for claim in claims(decided["H2"], "low_fnr")} == {"sign-flip"}
    assert {claim.attack.split()[0] for claim in claims(decided["H3"], "low_fnr")} == {"slow-drift"}
    assert {claim.attack.split()[0] for claim in claims(decided["H3"], "low_latency")} == {"sign-flip"}


def test_rules_and_attacks_of_absent_plug_ins_are_compared_too(make_run):
    for method in ("caac", "not-installed"):
        for attack in ("none", "not-installed-either"):
            make_run(method, attack=attack)
    decided = verdicts(make_run)
    assert {claim.other for claim in decided["H1"].claims} == {"not-installed"}
    assert claims(decided["H3"], "low_latency")


def test_h3_without_benign_drift_cannot_be_supported(make_run):
    for seed in MANY:
        make_run("caac", seed=seed, attack="sign-flip", flags=lambda c, n: c == "hospital-0" and n >= 5,
                 weights=lambda c, n: 0.0 if c == "hospital-0" else 0.25)  # fmt: skip
        make_run("fltrust", seed=seed, attack="sign-flip")
    verdict = verdicts(make_run)["H3"]
    assert {claim.outcome for claim in verdict.claims} == {"supported"}
    assert verdict.verdict == "undecided"
    assert any("benign drift" in part for part in verdict.missing)


def test_drift_runs_count_for_h3(make_run):
    drift = {"clients": ["hospital-2"], "start": 5, "size": 1.0, "ramp": 5}
    for seed in MANY:
        make_run("caac", seed=seed, drift=drift)
        make_run("fltrust", seed=seed, drift=drift, weights=low)
    (alarms,) = claims(verdicts(make_run)["H3"], "drift_fpr")
    assert (alarms.ours, alarms.theirs, alarms.outcome) == (0.0, 1.0, "supported")


def test_without_caac_there_is_nothing_to_judge(make_run):
    make_run("krum")
    assert verdicts(make_run) == {}


def test_the_hypotheses_are_about_runs_of_the_protocols_own_presets(make_run):
    for seed, name in enumerate(("mine", "caac")):
        for method in ("caac", "krum"):
            make_run(method, name=name, seed=seed)
    runs = measure_all(load_runs([make_run.root]))
    assert section([m for m in runs if m.run.config["name"] == "mine"]) is None
    assert section(runs) is not None
    assert preset_names() >= {"caac", "caac-drift", "caac-mimic3"}
