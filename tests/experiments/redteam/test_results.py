"""The results of a red team: their order, and what is kept of them."""

import pytest

from wardround.experiments import expand, read_yaml
from wardround.experiments.redteam.results import Findings, Tried, outcome_of
from wardround.records import Summary


def test_the_worst_come_first_and_only_those_run_on_every_seed(plan, tried, tiny):
    found = Findings(
        plan=plan(tiny),
        clean={200: 0.9, 201: 0.9, 202: 0.9},
        trials=(
            tried(0, [0.1, 0.1, 0.1]),
            tried(1, [0.3, 0.1, 0.2]),
            tried(2, [0.7], state="halved", name="noise"),
            Tried(number=3, attack={"name": "alie"}, state="failed", reason="no"),
        ),
    )
    assert [t.number for t in found.ranked] == [1, 0]
    assert found.worst[0].loss == pytest.approx(0.2)
    assert found.worst_so_far() == pytest.approx([0.1, 0.2, 0.2, 0.2])
    assert found.harmful == ["noise", "sign-flip"]


def test_what_does_harm_is_kept_as_a_matrix(plan, tried, tiny, tmp_path):
    mixture = [{"name": "agr-tailored", "share": 0.5}, {"name": "ipm", "share": 0.5}]
    found = Findings(
        plan=plan(tiny, seeds=(200,)),
        clean={200: 0.9},
        trials=(
            tried(0, [0.1]),
            tried(1, [0.3], scale=2.0),
            tried(2, [0.02], scale=3.0),
            Tried(
                number=3,
                attack={"name": "mix", "fraction": 0.4, "start": 1, "parts": mixture},
                outcomes=tried(3, [0.4]).outcomes,
                state="complete",
            ),
        ),
    )
    assert [t.number for t in found.kept] == [3, 1, 0]
    assert found.lowest(with_copy=False).number == 1
    found.write(tmp_path)
    runs = expand(read_yaml(tmp_path / "harmful.yaml"))
    assert [config.attack["name"] for config in runs] == ["none", "mix", "sign-flip", "sign-flip"]
    assert {config.aggregator["name"] for config in runs} == {"mean"}


def test_a_broken_model_is_worth_no_more_than_guessing():
    summary = Summary("finished", final={"auroc": None}, suppression={"tpr": 0.25, "fpr": 0.0})
    outcome = outcome_of(summary, 200, "auroc", clean=0.8)
    assert (outcome.value, outcome.loss, outcome.verdict) == (0.5, pytest.approx(0.3), "weights")


def finished(team):
    """Run name → when its summary was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in team.glob("runs/*/summary.json")}


def test_a_backdoor_that_works_counts_whatever_the_metric_says():
    final = {"auroc": 0.80, "attack_success": 0.9, "attack_success_without_trigger": 0.15}
    outcome = outcome_of(Summary("finished", final=final), 0, "auroc", 0.81)
    assert outcome.loss == outcome.backdoor == pytest.approx(0.75)
    assert outcome.value == 0.80
    weak = final | {"auroc": 0.5, "attack_success": 0.2}
    outcome = outcome_of(Summary("finished", final=weak), 0, "auroc", 0.81)
    assert outcome.loss == pytest.approx(0.31)
    assert outcome.backdoor == pytest.approx(0.05)
    by_itself = outcome_of(Summary("finished", final=final), 0, "auroc", 0.81, untaught=0.85)
    assert by_itself.backdoor == pytest.approx(0.05), "a clean model answers the trigger as well"
    without = outcome_of(Summary("finished", final={"auroc": 0.8}), 0, "auroc", 0.81)
    assert without.backdoor is None
