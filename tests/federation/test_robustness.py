"""κ̂ against its definition, within what is proven, and in the records of a run."""

import json

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.federation.robustness import empirical_kappa
from wardround.runs.config import load_config
from wardround.runs.runner import run


@pytest.mark.parametrize(
    ("name", "pre"),
    [("trimmed-mean", []), ("median", []), ("trimmed-mean", ["nnm"]), ("median", ["nnm"])],
)
def test_no_attack_exceeds_what_is_proven(name, pre):
    params = {} if name == "median" else {"f": 3}
    rule = aggregators.create(name, **params, pre=pre)
    bound = rule.proven_kappa(15)
    reached = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(15, 8)) * rng.uniform(0.1, 3)
        rows[:3] = rng.choice([-1, 1]) * rows[3:].std(0) * rng.uniform(0, 4) + rows[3:].mean(0)
        updates = Updates(rows)
        result = rule.aggregate(updates)
        honest = rows[3:]
        expected = ((result.delta.numpy() - honest.mean(0)) ** 2).sum() / honest.var(0).sum()
        kappa = empirical_kappa(updates, result, updates.clients[:3])
        assert kappa == pytest.approx(expected, rel=1e-9)
        reached.append(kappa)
    assert max(reached) <= bound


def test_the_mean_of_the_honest_is_perfect_and_nothing_is_said_without_spread():
    rows = torch.tensor([[1.0], [3.0], [50.0]])
    rule = aggregators.create("trimmed-mean", f=1)
    result = rule.aggregate(Updates(rows))
    result.delta = torch.tensor([2.0])
    assert empirical_kappa(Updates(rows), result, ["client-02"]) == 0
    assert empirical_kappa(Updates(torch.ones(3, 2)), rule.aggregate(Updates(torch.ones(3, 2))), []) is None
    assert rule.proven_kappa(5) == pytest.approx(6 / 3 * (1 + 1 / 3))
    assert aggregators.create("mean").proven_kappa(5) is None


def test_every_round_of_a_simulation_has_it(tiny, tmp_path):
    values = {
        **tiny,
        "aggregator": {"name": "trimmed-mean", "f": 1},
        "attack": {"name": "scaling", "fraction": 0.2},
    }
    folder = run(load_config({**values, "rounds": 2}), tmp_path)
    lines = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    assert all(line["kappa"] > 0 for line in lines)
    assert [record.kappa for record in folder.rounds()] == [line["kappa"] for line in lines]
    assert folder.config()["record"]["proven_kappa"] == pytest.approx(6 / 4 * (1 + 1 / 4))
    hidden = run(load_config({**tiny, "rounds": 1, "privacy": {"mode": "plaintext"}}), tmp_path)
    assert hidden.rounds()[0].kappa > 0, "fedavg by sample counts is not the plain mean"
