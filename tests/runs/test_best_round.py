"""The best round's model is kept while a run goes on, and survives a restart."""

import pytest
import torch

from wardround.experiments import load_config, run
from wardround.federation.schedule import Schedule
from wardround.records import RoundRecord
from wardround.runs.best_round import BEST, BEST_BEFORE, BestRound, is_extra_evaluation
from wardround.runs.runner import build


def test_the_first_of_equal_rounds_is_best():
    best = BestRound()
    for number, auroc in ((1, 0.6), (2, None), (3, 0.8), (4, 0.8), (5, 0.7)):
        best.consider(RoundRecord(number, validation={"auroc": auroc}), torch.tensor([float(number)]))
    assert (best.round, best.auroc, best.weights.item()) == (3, 0.8, 3.0)


def test_a_round_without_validation_or_without_a_whole_model_is_never_best():
    best = BestRound()
    best.consider(RoundRecord(1), torch.zeros(1))
    best.consider(RoundRecord(2, validation={"auroc": 0.9}), None)
    assert best.state_dict() is None


def test_it_survives_a_restart():
    best = BestRound()
    best.consider(RoundRecord(3, validation={"auroc": 0.8}), torch.ones(2))
    again = BestRound(best.state_dict())
    again.consider(RoundRecord(4, validation={"auroc": 0.7}), torch.zeros(2))
    assert (again.round, again.auroc) == (3, 0.8)
    assert torch.equal(again.weights, torch.ones(2))


@pytest.mark.parametrize(
    ("every", "round", "extra"), [(1, 6, False), (4, 6, True), (3, 6, False), (4, 4, False)]
)
def test_only_the_last_round_is_evaluated_beyond_the_interval(every, round, extra):
    assert is_extra_evaluation(Schedule(6, evaluate_every=every), round) is extra


def test_the_checkpoint_has_the_weights_of_the_round_that_the_summary_calls_best(tiny, tmp_path):
    tiny |= {"training": {"lr": 0.2}, "attack": {"name": "sign-flip", "fraction": 0.34, "start": 4}}
    folder = run(load_config(tiny), tmp_path)
    kept = folder.read_checkpoint()[BEST]
    assert kept["round"] == folder.summary().best["round"] < 6, "the attack makes later rounds worse"
    federation = build(load_config(tiny))
    with federation.trainer:
        for number in range(1, kept["round"] + 1):
            federation.step(number)
    assert torch.equal(kept["weights"], federation.weights)


def test_what_was_best_before_an_extra_evaluation_is_kept_too(tiny, tmp_path):
    folder = run(load_config(tiny | {"rounds": 5, "evaluate_every": 3}), tmp_path)
    checkpoint = folder.read_checkpoint()
    assert checkpoint[BEST_BEFORE]["round"] == 3
    assert BEST_BEFORE not in run(load_config(tiny), tmp_path).read_checkpoint()
