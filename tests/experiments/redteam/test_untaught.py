"""What a clean model says to a trigger is not the attack's."""

import pytest

from wardround.experiments.redteam.untaught import untaught_success
from wardround.runs.config import load_config
from wardround.runs.runner import run


@pytest.fixture
def clean(tiny, tmp_path):
    """A run on a table whose outcome follows the features: a trigger that raises them is answered by itself."""
    values = {**tiny, "dataset": {"name": "breast-cancer"}, "training": {"lr": 0.01, "epochs": 2}}
    return values, run(load_config(values), tmp_path)


@pytest.mark.slow
def test_a_trigger_that_means_the_target_needs_no_backdoor(clean):
    values, folder = clean
    attack = {"name": "backdoor", "fraction": 0.2, "features": list(range(10)), "target": 1}
    answers = {
        target: untaught_success(load_config({**values, "attack": {**attack, "target": target}}), folder)
        for target in (0, 1)
    }
    assert answers[1] > 0.8
    assert answers[0] < 0.2


def test_other_attacks_have_none(clean):
    values, folder = clean
    flipping = {"name": "sign-flip", "fraction": 0.2}
    assert untaught_success(load_config({**values, "attack": flipping}), folder) is None
