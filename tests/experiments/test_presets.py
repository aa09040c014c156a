"""Presets: every one expands, and the protocols are in them to the letter. No dataset is needed for that."""

from collections import Counter
from functools import cache

import pytest
from fast_cases import slow_but

from wardround import aggregators, attacks, faults
from wardround.errors import ConfigError
from wardround.experiments import expand, presets
from wardround.experiments.redteam import Plan

EXPECTED = {
    "caac-core", "caac-core-mimic3", "caac-core-mimic3-series", "caac-core-isic2019",
    "caac-extended", "caac-extended-mimic3", "caac-extended-isic2019", "caac-extended-chestxray8",
    "caac-ablation", "caac-ablation-mimic3", "caac-ablation-isic2019", "caac-drift", "caac-drift-icu",
    "dos-chexpert", "dos-icu", "dos-ham10000", "dos-proportion", "dos-clients",
    "fedbnp-alzheimer", "fedbnp-mnist", "fedbnp-cifar10", "fedmed-icu", "fedmed-smoking", "demo",
}  # fmt: skip


@cache
def configs(name):
    values, where = presets.load_matrix(name)
    return expand(values, where)


def key(config):
    return config.aggregator["name"], config.partition.get("alpha"), config.attack["name"]


def test_they_are_all_there():
    assert set(presets.available()) >= EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(presets.available()))
def test_every_preset_expands_and_says_what_it_is(name):
    found = configs(name)
    assert len({config.run_name for config in found}) == len(found) > 0
    assert len(presets.available()[name]) > 20
    for config in found:
        window = config.window()
        somebody = window.fraction > 0 or bool(window.clients)
        assert somebody == (config.attack["name"] != "none")


@pytest.mark.parametrize("name", ["caac-core", "caac-core-mimic3", "caac-core-isic2019"])
def test_the_core_matrix_is_the_protocols(name):
    found = configs(name)
    assert len(found) == 57
    expected = Counter()
    for method in ("fedavg", "krum", "fltrust", "caac"):
        for alpha in (1.0, 0.1):
            expected[method, alpha, "none"] = 3
        for attack in ("sign-flip", "alie"):
            expected[method, 0.1, attack] = 3
    for method in ("fedavg", "fltrust", "caac"):
        expected[method, 0.1, "slow-drift"] = 3
    assert Counter(map(key, found)) == expected
    for config in found:
        assert config.rounds == 100
        assert (config.partition["clients"], config.partition["sizes"]) == (20, "power-law")
        assert config.training.model_dump(include={"optimizer", "lr", "batch_size"}) == {
            "optimizer": "adam", "lr": 0.001, "batch_size": 32,
        }  # fmt: skip
        assert config.participation == 1.0
        if config.attack["name"] != "none":
            assert (config.window().fraction, config.window().start, config.window().end) == (0.2, 15, None)


def test_the_ablation_has_every_part_clean_and_attacked_and_shares_runs_with_the_core():
    found = configs("caac-ablation")
    methods = ("caac-mag", "caac-dir", "caac-temp", "caac-mag+dir", "caac")
    assert Counter(map(key, found)) == {
        (method, 0.1, attack): 3 for method in methods for attack in ("none", "sign-flip", "alie")
    }
    core = {config.run_name for config in configs("caac-core")}
    assert len(core & {config.run_name for config in found}) == 9, "the full rule's runs are the core's"


def test_the_extended_matrix():
    found = configs("caac-extended-chestxray8")
    assert {config.aggregator["name"] for config in found} == {
        "fedavg", "krum", "fltrust", "caac", "median", "trimmed-mean", "rfa", "lasa",
    }  # fmt: skip
    assert {config.partition["clients"] for config in found} == {20, 50}
    assert "profile-aware" in {config.attack["name"] for config in found}
    assert {config.seed for config in found} == set(range(5))


@pytest.mark.slow
def test_dos_scenarios_are_the_papers():
    found = configs("dos-chexpert")
    assert {config.partition["clients"] for config in found} == {10}
    assert {config.partition["name"] for config in found} == {"iid"}
    assert {(c.attack["name"], c.window().fraction) for c in found} == {
        ("none", 0.0), ("label-flip", 0.1), ("mix", 0.4), ("noise", 0.4), ("crafted", 0.4),
    }  # fmt: skip
    assert {config.window().fraction for config in configs("dos-proportion")} == {
        0,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
    }
    assert {config.partition["clients"] for config in configs("dos-clients")} == {5, 10, 20, 40}
    assert {config.rounds for config in configs("dos-ham10000")} == {250}
    for name in ("dos-chexpert", "dos-chestxray", "dos-icu", "dos-ham10000"):
        told = {
            (c.aggregator["name"], round(10 * c.window().fraction), c.aggregator["f"])
            for c in configs(name)
            if "f" in c.aggregator
        }
        # Of ten clients Krum is sound for three (N ≥ 2f+3).
        assert told == {
            (rule, attackers, min(attackers, 3) if rule == "krum" else attackers)
            for rule in ("krum", "trimmed-mean")
            for attackers in {round(10 * c.window().fraction) for c in configs(name)}
        }


@pytest.mark.slow
def test_fedbnp_is_the_documents():
    found = configs("fedbnp-mnist")
    assert {config.seed for config in found} == {42, 123, 456, 789, 1000}
    assert {config.partition.get("alpha") for config in found} == {0.1, 0.5, 1.0, None}
    assert {config.partition["name"] for config in found} == {
        "dirichlet",
        "iid",
        "label-skew",
        "quantity-skew",
    }
    assert {config.aggregator["name"] for config in found} >= {
        "fedavg",
        "fedprox",
        "fedbn",
        "rl",
        "caac-guard",
    }
    assert {config.window().fraction for config in found} == {0.0, 0.3}
    assert {config.training.schedule for config in found} == {"cosine"}
    assert {config.training.epochs for config in found} == {5}


def test_five_folds_move_the_clients_and_nothing_else():
    found = configs("fedbnp-alzheimer-folds")
    assert {config.partition["fold"] for config in found} == set(range(5))
    assert {config.partition["cross_validation"] for config in found} == {5}
    assert {config.seed for config in found} == {42}


def test_the_stand_in_for_chexpert_differs_in_its_images_alone():
    chexpert, nih = (configs(name) for name in ("dos-chexpert", "dos-chestxray"))
    for one, other in zip(chexpert, nih, strict=True):
        assert other.dataset["name"] == "chestxray8"
        same = one.plain()
        for key in ("name", "dataset"):
            same[key] = other.plain()[key]
        assert same == other.plain()


def test_k_mad_is_swept_against_one_liar_and_many():
    found = configs("fedmed-k-mad")
    assert {config.aggregator["k_mad"] for config in found} == {1.0, 2.0, 3.0, 5.0, 10.0}
    assert {(c.window().fraction, c.attack.get("collude")) for c in found} == {
        (0.0, None), (0.05, False), (0.2, True), (0.4, True),
    }  # fmt: skip


def test_series_of_the_icu_are_in_a_preset():
    assert {config.dataset["view"] for config in configs("caac-core-mimic3-series")} == {"series"}


def test_fedmed_crosses_liars_and_clipping():
    found = configs("fedmed-icu")
    assert {config.aggregator["clip"] for config in found} == {"none", "percentile", "mad"}
    liars = {(c.window().fraction, c.attack.get("collude")) for c in found}
    assert {(0.0, None), (0.05, False), (0.4, False), (0.4, True)} <= liars


def test_an_unknown_preset_is_told_the_known_ones():
    with pytest.raises(ConfigError, match="did you mean 'caac-core'"):
        presets.load_matrix("caac-cor")


GUARD = (
    "guard-rules",
    "guard-attacks",
    "guard-training",
    "guard-classes",
    "guard-many",
    "guard-faults",
    "guard-small",
)


@pytest.mark.slow
def test_the_guards_tables_leave_no_rule_no_attack_and_no_fault_out():
    rules = {c.aggregator["name"] for c in configs("guard-rules")}
    quick = {
        name for name in aggregators.available() if not aggregators.registry.get(name).needs_practice_ground
    }
    assert rules == {*quick, "oracle"}
    every_attack = configs("guard-attacks")
    assert {c.attack["name"] for c in every_attack} == set(attacks.available()) - {"none"}
    assert {c.window().fraction for c in every_attack} == {0.1, 0.4}
    assert {c.fault["name"] for c in configs("guard-faults")} == set(faults.available()) - {"none"}
    assert any(c.attack["name"] != "none" for c in configs("guard-faults")), "a fault beside an attack"


@pytest.mark.parametrize("name", slow_but(GUARD[:1], GUARD))
def test_every_table_of_the_guard_has_its_yardsticks(name):
    """What a rule loses is measured against the oracle, and harm against FedAvg, in the same setting."""
    found = configs(name)
    conditions = {(str(c.attack), str(c.fault), str(c.training), c.seed) for c in found}
    by_rule = {}
    for c in found:
        here = (str(c.attack), str(c.fault), str(c.training), c.seed)
        by_rule.setdefault(c.aggregator["name"], set()).add(here)
    for rule in ("oracle", "fedavg", "median", "caac-guard"):
        assert by_rule[rule] == conditions


@pytest.mark.slow
def test_the_guards_tables_cover_optimisers_sizes_and_classes():
    found = [c for name in GUARD for c in configs(name)]
    assert {(c.training.optimizer, c.training.method) for c in found} == {
        ("adam", "plain"), ("sgd", "plain"), ("sgd", "scaffold"),
    }  # fmt: skip
    assert {c.partition["clients"] for c in found} == {12, 20, 120}
    assert {c.dataset["name"] for c in found} == {"icu", "digits", "synthetic"}
    for c in found:
        if c.aggregator["name"] == "multi-krum" and c.attack["name"] != "none":
            attackers = round(c.attack["fraction"] * c.partition["clients"])
            assert c.aggregator["f"] == attackers, "rules that need f are told the truth"


@pytest.mark.parametrize("name", ["redteam-wide", "redteam-sites"])
def test_settings_of_the_red_team_are_runs_of_a_matrix(name):
    values, _ = presets.load_matrix(name)
    plan = Plan(aggregator="median", base=values["base"], settings=tuple(values["runs"]), seeds=(0,))
    plan.check()
    found = [plan.clean(0, setting) for setting in range(plan.count_settings)]
    assert {c.training.optimizer for c in found} == {"sgd", "adam"}
    assert len({c.hash for c in found}) == len(found)


@pytest.mark.parametrize(("name", "data"), [("caac-drift", "synthetic"), ("caac-drift-icu", "icu")])
def test_benign_drift_is_alone_and_with_attackers(name, data):
    found = configs(name)
    assert len(found) == 36
    assert {config.dataset["name"] for config in found} == {data}
    assert {config.attack["name"] for config in found} == {"none", "sign-flip", "slow-drift"}
    for config in found:
        assert config.drift.clients == ("hospital-01", "hospital-04", "hospital-07")
        assert config.drift.feature_shift == 2.0


WRONG_ON_PURPOSE = {"wrong-f"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(presets.available()) - WRONG_ON_PURPOSE))
def test_rules_are_told_the_true_number_of_attackers(name):
    """Given or by default; a rule that cannot withstand so many is told the most that it can."""
    seen = {}
    for config in configs(name):
        clients, fraction = config.partition.get("clients"), config.window().fraction
        rule_name, params = config.section("aggregator")
        if fraction and isinstance(clients, int):
            seen[rule_name, str(params), clients, fraction] = params
    for (rule_name, _, clients, fraction), params in seen.items():
        rule = aggregators.create(rule_name, **params)
        if not isinstance(getattr(rule, "rule", rule), aggregators.ByzantineBound):
            continue
        true = int(fraction * clients + 0.5)
        bound = getattr(rule, "rule", rule)
        most = (clients - bound.clients_besides) // bound.clients_per_byzantine
        assert rule.assumed_byzantine(clients) == min(true, most), (rule_name, clients, fraction)
