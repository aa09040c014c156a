"""What a red team is asked to do."""

import pytest
import yaml

from wardround.cli.redteam import _plan
from wardround.errors import ConfigError
from wardround.experiments.redteam import Plan

BASE = {"dataset": {"name": "icu"}, "partition": {"name": "iid", "clients": 10}, "rounds": 2}


def attack(fraction):
    return {"name": "sign-flip", "fraction": fraction}


def test_rules_are_told_the_number_of_each_runs_attackers():
    base = {**BASE, "aggregator": {"pre": [{"name": "nnm"}]}}
    plan = Plan(aggregator="trimmed-mean", base=base, seeds=(0,), f="attackers")
    for fraction, attackers in ((0.4, 4), (0.2, 2)):
        rule = plan.config(attack(fraction), 0).aggregator
        assert rule["f"] == rule["pre"][0]["f"] == attackers
    assert plan.clean(0).aggregator["f"] == 0


def test_a_rule_is_told_no_more_than_it_withstands():
    plan = Plan(aggregator="krum", base=BASE, seeds=(0,), f="attackers")
    assert plan.config(attack(0.4), 0).aggregator["f"] == 3


def test_what_the_base_says_stays():
    plan = Plan(aggregator="krum", base={**BASE, "aggregator": {"f": 1}}, seeds=(0,), f="attackers")
    assert plan.config(attack(0.3), 0).aggregator["f"] == 1


def test_searches_with_and_without_the_true_number_are_not_compared():
    plans = [Plan(aggregator="krum", base=BASE, seeds=(0,), f=f) for f in (None, "attackers")]
    assert plans[0].setting != plans[1].setting


def test_the_default_setting_gives_rules_the_true_number(tmp_path):
    assert _plan("krum", None, None, None).config(attack(0.25), 200).aggregator["f"] == 5
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({"base": BASE, "seeds": [1]}))
    assert _plan("krum", other, None, None).config(attack(0.3), 1).aggregator["f"] is None
    other.write_text(yaml.safe_dump({"base": BASE, "f": "half"}))
    with pytest.raises(ConfigError, match="redteam: f: "):
        _plan("krum", other, None, None)
