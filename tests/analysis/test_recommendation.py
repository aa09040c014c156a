"""Which rule the runs support: every outcome, on results that are made up for it."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from wardround.analysis import analyze, load_runs
from wardround.analysis.measures import measure_all
from wardround.analysis.recommendation import recommend, recommendations
from wardround.protocols import papers

SEEDS = range(6)


def results(seeds=SEEDS, **by_method):
    """AUROC by method: each gives {attack: mean}; seeds scatter around it by a few thousandths."""
    return {
        method.replace("_", "-"): {
            (attack.replace("_", "-"), seed): value + 0.001 * ((7 * seed + len(method)) % 5 - 2)
            for attack, value in means.items()
            for seed in seeds
        }
        for method, means in by_method.items()
    }


def test_the_rule_with_the_best_worst_case_is_recommended_with_cost_and_saving():
    answer = recommend(
        results(
            fedavg={"clean": 0.85, "alie": 0.80, "sign_flip": 0.50},
            median={"clean": 0.83, "alie": 0.82, "sign_flip": 0.81},
            krum={"clean": 0.70, "alie": 0.75, "sign_flip": 0.72},
        )
    )
    assert answer.verdict == "recommended"
    assert answer.rule == "median"
    assert answer.headline == "Use median here."
    assert answer.reference == "fedavg"
    assert answer.cost.difference == pytest.approx(0.02, abs=1e-3)
    assert answer.saving.difference == pytest.approx(0.31, abs=1e-3)
    assert "Without an attack it costs 0.020: AUROC 0.830, plain averaging (fedavg) has 0.850" in answer.text
    assert "Under the worst of 2 attacks for fedavg (sign-flip) it keeps 0.810" in answer.text
    assert "Of 6 seeds, all have it ahead under that attack (rank test: p = 0.031)." in answer.text
    assert [standing.method for standing in answer.standings] == ["median", "krum", "fedavg"]


def test_a_good_rule_without_attack_that_an_attack_destroys_is_not_recommended():
    """The worst case decides, not the mean: a rule that one of many attacks breaks is not to be relied on."""
    answer = recommend(
        results(
            fedavg={"clean": 0.85, "a": 0.5, "b": 0.5, "c": 0.5},
            brilliant={"clean": 0.86, "a": 0.86, "b": 0.86, "c": 0.55},
            steady={"clean": 0.80, "a": 0.80, "b": 0.80, "c": 0.79},
        )
    )
    assert answer.rule == "steady"
    assert "Its own worst attack" in answer.text or answer.standings[0].worst_attack == "c"


def test_nothing_is_recommended_where_every_rule_fails():
    answer = recommend(results(fedavg={"clean": 0.86, "alie": 0.50}, median={"clean": 0.80, "alie": 0.62}))
    assert (answer.verdict, answer.rule) == ("none", None)
    assert answer.headline.startswith("No rule can be recommended: even the best one here, median, keeps")
    assert "0.620" in answer.headline
    # Half of what there is above chance is enough.
    assert (
        recommend(results(fedavg={"clean": 0.8, "a": 0.5}, median={"clean": 0.8, "a": 0.66})).rule == "median"
    )


def test_plain_averaging_is_enough_where_nothing_beats_it():
    answer = recommend(results(fedavg={"clean": 0.85, "alie": 0.84}, median={"clean": 0.80, "alie": 0.78}))
    assert (answer.verdict, answer.rule) == ("not needed", "fedavg")
    assert answer.headline.startswith("Plain averaging (fedavg) is enough against these attacks")


def test_a_rule_that_seeds_cannot_tell_from_plain_averaging_is_not_decided():
    made = results(fedavg={"clean": 0.85, "a": 0.75}, median={"clean": 0.84, "a": 0.77})
    made["fedavg"]["a", 0] = 0.84  # in one seed the attack did nothing
    answer = recommend(made)
    assert (answer.verdict, answer.rule) == ("undecided", None)
    assert answer.headline.startswith("Not decided: median has the best worst case")
    assert "fedavg" in answer.tied_with
    assert "Of 6 seeds, 5 have it ahead" in answer.text


def test_tied_rules_are_named():
    made = results(
        fedavg={"clean": 0.85, "a": 0.5},
        median={"clean": 0.84, "a": 0.80},
        trimmed_mean={"clean": 0.84, "a": 0.80},
    )
    made["median"]["a", 0] += 0.004
    made["trimmed-mean"]["a", 1] += 0.003
    answer = recommend(made)
    assert (answer.verdict, answer.rule, answer.tied_with) == ("tied", "median", ("trimmed-mean",))
    assert answer.headline == (
        "Use median here. trimmed-mean may be as good: 6 seeds do not tell them apart."
    )


def test_two_rules_that_are_the_same_are_tied():
    same = {"clean": 0.84, "a": 0.80}
    made = results(fedavg={"clean": 0.85, "a": 0.5}, rfaa=same, rfab=same)
    answer = recommend(made)
    assert (answer.rule, answer.tied_with) == ("rfaa", ("rfab",))


def test_one_seed_is_a_hint():
    answer = recommend(results([3], fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.84, "a": 0.80}))
    assert (answer.verdict, answer.rule, answer.seeds) == ("one seed", "median", (3,))
    assert answer.headline == "Use median here, as far as a single seed can tell."
    assert "interval" not in answer.text, "one seed has none"
    assert "One seed says nothing about chance" in answer.text


def test_few_seeds_say_what_a_rank_test_could_show():
    answer = recommend(results(range(3), fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.84, "a": 0.80}))
    assert answer.rule == "median"
    assert "with so few, a rank test cannot call it significant (p is 0.25 at best)" in answer.text


def test_without_clean_runs_the_cost_is_not_known():
    answer = recommend(results(fedavg={"a": 0.5}, median={"a": 0.80}))
    assert answer.rule == "median"
    assert answer.cost is None
    assert "What it costs without an attack is not known: every run has one." in answer.text


def test_a_cost_below_the_last_digit_is_none():
    made = results([0], fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.85, "a": 0.80})
    made["fedavg"]["clean", 0] = made["median"]["clean", 0] + 0.0004
    assert "Without an attack it costs nothing: AUROC" in recommend(made).text


def test_without_attacked_runs_nothing_is_recommended():
    answer = recommend(results(fedavg={"clean": 0.85}, median={"clean": 0.80}))
    assert (answer.verdict, answer.rule) == ("none", None)
    assert answer.headline.startswith("No rule can be recommended: nobody attacks in these runs")
    assert "fedavg has the highest AUROC, 0.850; next is median with 0.800." in answer.text


def test_without_fedavg_the_next_best_rule_is_the_measure():
    answer = recommend(results(median={"clean": 0.84, "a": 0.80}, krum={"clean": 0.7, "a": 0.7}))
    assert (answer.rule, answer.reference) == ("median", "krum")
    assert "Without an attack it costs nothing: AUROC 0.840, krum has 0.700" in answer.text


def test_a_single_rule_has_nothing_to_be_compared_with():
    answer = recommend(results(median={"clean": 0.84, "a": 0.80}))
    assert answer.rule is None
    assert "median is the only rule here" in answer.headline
    assert answer.details == ("It reached AUROC 0.840 without an attack, 0.800 under a.",)


def test_rules_that_never_met_are_not_compared():
    made = results([0], fedavg={"clean": 0.85, "a": 0.5}) | results([1], median={"clean": 0.84, "a": 0.8})
    answer = recommend(made)
    assert answer.rule is None
    assert "no two rules ran under the same attacks with the same seeds" in answer.headline


def test_a_rule_that_skipped_the_hard_attack_is_left_out():
    made = results(
        fedavg={"clean": 0.85, "easy": 0.84, "hard": 0.5},
        median={"clean": 0.84, "easy": 0.82, "hard": 0.80},
        lucky={"clean": 0.85, "easy": 0.85},
    )
    answer = recommend(made)
    assert (answer.rule, answer.left_out) == ("median", ("lucky",))
    assert set(answer.standings[0].values) == {"clean", "easy", "hard"}


def test_an_attack_that_only_one_rule_met_is_given_up():
    made = results(fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.84, "a": 0.8, "b": 0.2})
    answer = recommend(made)
    assert answer.rule == "median"
    assert set(answer.standings[0].values) == {"clean", "a"}


def test_a_rule_with_few_finished_seeds_does_not_hide_the_others():
    made = results(fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.84, "a": 0.8})
    made |= results([0], slow={"clean": 0.9, "a": 0.9})
    answer = recommend(made)
    assert (answer.rule, answer.left_out, len(answer.seeds)) == ("median", ("slow",), 6)


def test_a_backdoor_is_not_in_the_auroc():
    made = results(fedavg={"clean": 0.85, "a": 0.5}, median={"clean": 0.84, "a": 0.8})
    assert "backdoor" in recommend(made, backdoor=True).text
    assert "backdoor" not in recommend(made).text


def test_what_must_be_known_about_a_rule_is_said_where_it_leads():
    made = results(
        fedavg={"clean": 0.85, "a": 0.5}, guard={"clean": 0.84, "a": 0.8}, krum={"clean": 0.7, "a": 0.7}
    )
    assert recommend(made, cautions={"guard": "But beware."}).details[-1] == "But beware."
    assert "beware" not in recommend(made, cautions={"krum": "But beware."}).text


def test_the_projects_own_rule_is_never_recommended_without_its_caution(make_run):
    for seed in range(3):
        for method, kept in (("fedavg", 0.5), ("caac-guard", 0.8)):
            make_run(method, seed=seed, auroc=0.85 + 0.001 * seed)
            make_run(method, seed=seed, auroc=kept + 0.001 * seed, attack="sign-flip")
    (answer,) = analyze(load_runs([make_run.root]), papers=papers()).recommendations
    assert answer.rule == "caac-guard"
    assert "docs/caac-guard.md" in answer.details[-1]


values = st.floats(0.3, 0.95)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 3), st.integers(2, 7))
def test_whatever_the_runs_the_leading_rule_has_the_best_worst_case(data, methods, attacks, seeds):
    names = ["fedavg", "krum", "median", "rfa"][:methods]
    conditions = ["clean", *(f"attack-{i}" for i in range(attacks))]
    made = {
        name: {(c, seed): data.draw(values) for c in conditions for seed in range(seeds)} for name in names
    }
    answer = recommend(made)
    worst = {
        name: fmean(min(made[name][c, seed] for c in conditions) for seed in range(seeds)) for name in names
    }
    leader = answer.standings[0].method
    assert math.isclose(worst[leader], max(worst.values()))
    assert answer.rule in (None, leader)
    assert leader not in answer.tied_with
    if answer.verdict == "recommended":
        # An independent reference: scipy's own paired test; Holm's correction only makes it harder.
        for other in set(names) - {leader}:
            ours, theirs = (
                np.array([min(made[n][c, seed] for c in conditions) for seed in range(seeds)])
                for n in (leader, other)
            )
            assert (ours > theirs).all()
            assert np.ptp(ours - theirs) < 1e-12 or stats.ttest_rel(ours, theirs).pvalue <= 0.05


@pytest.mark.slow
def test_runs_are_grouped_by_setting(make_run):
    for seed in range(3):
        for alpha, good in ((0.1, "median"), (1.0, "krum")):
            for method in ("fedavg", "median", "krum"):
                kept = 0.8 if method == good else 0.5
                make_run(method, seed=seed, alpha=alpha, auroc=0.85 + 0.001 * seed)
                make_run(method, seed=seed, alpha=alpha, auroc=kept + 0.001 * seed, attack="sign-flip")
    runs = load_runs([make_run.root])
    answers = recommendations(measure_all(runs))
    assert {(answer.setting.split(" · ")[1], answer.rule) for answer in answers} == {
        ("dirichlet α 0.1", "median"),
        ("dirichlet α 1", "krum"),
    }
    text = analyze(runs).markdown()
    assert text.startswith("### synthetic · dirichlet α 0.1 · 4 clients\n\n**Use median here.** ")
    assert [answer["rule"] for answer in analyze(runs).plain()["recommendations"]] == ["median", "krum"]
