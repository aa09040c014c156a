"""The rule of a run, from its folder."""

import pytest
import torch

from wardround import aggregators
from wardround.errors import ParameterError
from wardround.experiments import load_config, run
from wardround.runs.rule import restore_rule, rule_class


def test_a_rule_is_restored_as_the_last_round_left_it(tiny, tmp_path):
    folder = run(load_config({**tiny, "rounds": 3, "aggregator": {"name": "caac", "beta": 0.7}}), tmp_path)
    rule = restore_rule(folder)
    assert rule.name == "caac"
    assert rule.params.beta == 0.7
    assert rule.rounds == 3
    assert torch.equal(rule.profiles, folder.read_checkpoint()["federation"]["rule"]["profiles"])


def test_before_the_first_round_it_is_new(tiny, tmp_path):
    folder = run(load_config({**tiny, "rounds": 1, "aggregator": {"name": "caac"}}), tmp_path)
    folder.checkpoint_path.unlink()
    assert restore_rule(folder).profile_table() == {}


def test_a_rule_that_is_not_installed_has_no_class_and_cannot_be_restored(tiny, tmp_path):
    assert rule_class({"aggregator": {"name": "caac-guard"}}) is aggregators.registry.get("caac-guard")
    for section in ({"name": "not-installed"}, {}, "caac", None):
        assert rule_class({"aggregator": section}) is None
    folder = run(load_config({**tiny, "rounds": 1}), tmp_path)
    folder.write_config({**folder.config(), "aggregator": {"name": "not-installed"}})
    with pytest.raises(ParameterError, match="unknown aggregator 'not-installed'"):
        restore_rule(folder)
