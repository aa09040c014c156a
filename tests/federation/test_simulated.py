"""Attackers inside the loop: data poisoning, known defences, backdoors, benign drift."""

import json
import math

import numpy as np
import pytest
import torch

from wardround.aggregators import ClientPolicy
from wardround.errors import RenamedWarning
from wardround.experiments import load_config
from wardround.federation.client import train_together
from wardround.records import RoundRecord
from wardround.runs.runner import build

TINY = {
    "dataset": {"name": "synthetic", "samples": 600, "features": 6},
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.01},
    "rounds": 6,
}


def federation(**sections):
    return build(load_config({**TINY, **sections}))


def test_flipped_labels_are_used_only_inside_the_window():
    attack = {
        "name": "label-flip",
        "mode": "invert",
        "p": 1.0,
        "clients": ["hospital-01"],
        "start": 2,
        "end": 3,
    }
    fed = federation(attack=attack)
    attacker, honest = (fed.clients.members[name] for name in ("hospital-01", "hospital-02"))
    clean = attacker.data.targets.clone()
    assert attacker.training_data(1) is attacker.data
    assert torch.equal(attacker.training_data(2).targets, 1 - clean)
    assert attacker.training_data(2) is attacker.training_data(2), "poisoned once and kept"
    assert attacker.training_data(3) is attacker.data
    assert honest.training_data(2) is honest.data
    assert torch.equal(attacker.data.targets, clean), "the client's own copy stays clean"


def test_an_attacker_that_asks_the_defender_teaches_it_nothing():
    asked = federation(
        attack={"name": "agr-tailored", "fraction": 0.34}, aggregator={"name": "caac", "t_boot": 0}
    )
    asked.step(1)
    assert asked.rule.rounds == 1, "every question went to a copy"
    assert asked.rule.profiles[:, 4].tolist() == [1.0] * 6


def test_a_backdoor_reports_its_success_and_works_when_most_clients_plant_it():
    dataset = {
        **TINY["dataset"],
        "informative": 3,
    }  # so that the trigger on feature 5 means nothing by itself
    attack = {"name": "backdoor", "target": 1, "features": [5], "fraction": 0.67}
    planted = federation(attack=attack, dataset=dataset)
    honest = federation(attack={**attack, "fraction": 0.0}, dataset=dataset)
    for number in range(1, 7):
        attacked, quiet = planted.step(number), honest.step(number)
    assert attacked.metrics["attack_success"] > quiet.metrics["attack_success"] + 0.3
    assert attacked.metrics["attack_success"] > attacked.metrics["attack_success_without_trigger"] + 0.3


def test_benign_drift_moves_the_chosen_client_and_nobody_else():
    drift = {"clients": ["hospital-02"], "start": 2, "ramp": 3, "size": 3.0}
    dataset = {**TINY["dataset"], "drift": drift}
    with pytest.warns(RenamedWarning):
        moved, still = federation(dataset=dataset), federation()

    def trained(fed, round):
        members = list(fed.clients.members.values())
        return train_together(members, fed.clients.work, fed.weights, round, ClientPolicy())[0]

    assert torch.equal(trained(moved, 1), trained(still, 1)), "before the drift"
    rows = [trained(fed, 4) for fed in (moved, still)]
    same = [torch.equal(a, b) for a, b in zip(*rows, strict=True)]
    assert same == [True, True, False, True, True, True]


@pytest.mark.parametrize("rule", ["fedavg", "caac"])
def test_a_mixture_strikes_with_all_its_parts(rule):
    parts = [{"name": "noise", "share": 0.5}, {"name": "label-flip", "share": 0.5}]
    fed = federation(attack={"name": "mix", "parts": parts, "fraction": 0.67}, aggregator={"name": rule})
    record = fed.campaign.record()
    assert sorted(len(part["clients"]) for part in record["parts"]) == [2, 2]
    assert fed.step(1).metrics is not None


def drifting(**values):
    return {"clients": ["hospital-02"], "start": 2, "ramp": 3, **values}


def test_the_section_drift_is_what_the_generator_did_before():
    former = {"clients": ["hospital-02"], "start": 2, "ramp": 3, "size": 3.0}
    with pytest.warns(RenamedWarning, match="dataset.drift is now the section drift"):
        old = federation(dataset={**TINY["dataset"], "drift": former})
    new = federation(drift=drifting(feature_shift=3.0))
    for number in range(1, 5):
        old.step(number), new.step(number)
        assert torch.equal(old.weights, new.weights)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [TINY["dataset"], {"name": "icu"}])
@pytest.mark.parametrize("shift", [{"feature_shift": 2.0}, {"label_shift": 0.5}])
def test_every_engine_sees_the_same_drift(dataset, shift):
    same = {"dataset": dataset, "drift": drifting(**shift), "partition": {"name": "iid", "clients": 6}}
    still = federation(**{**same, "drift": None}, engine="sequential")
    one, *others = (federation(**same, engine=engine) for engine in ("sequential", "vectorized", "fused"))
    for fed in (still, one, *others):
        for number in range(1, 5):
            fed.step(number)
    for other in others:
        assert torch.allclose(one.weights, other.weights, atol=1e-4)
    assert not torch.allclose(one.weights, still.weights, atol=1e-4)


def test_a_resumed_run_drifts_on():
    config = {
        "drift": drifting(feature_shift=2.0, label_shift=0.5),
        "partition": {"name": "iid", "clients": 6},
    }
    whole, first, second = (federation(**config) for _ in range(3))
    for number in range(1, 6):
        whole.step(number)
    for number in (1, 2, 3):
        first.step(number)
    second.load_state_dict(first.state_dict())
    for number in (4, 5):
        second.step(number)
    assert torch.equal(whole.weights, second.weights)


HARSH = {"name": "noise", "scale": 1e6, "fraction": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "rule"),
    [("medical-cnn", "fedavg"), ("medical-cnn", "fedbn"), ("medical-cnn", "dos")],
)
def test_no_figure_ends_a_run_of_images(model, rule, tmp_path):
    """Attackers as strong as can be, classes that few clients have, and clients without any test image."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 90), ("val", 15), ("test", 20)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(rows, dtype=np.uint8)[:, None] % 5
    np.savez(tmp_path / "pictures.npz", **arrays)
    fed = federation(
        dataset={"name": "medmnist", "file": str(tmp_path / "pictures.npz")},
        partition={"name": "label-skew", "clients": 6, "classes": 2},
        model={"name": model},
        aggregator={"name": rule},
        attack=HARSH,
        rounds=2,
    )
    first, *_ = fed.clients.members.values()
    first.test_rows = first.test_rows[:0]
    for number in (1, 2):
        record = fed.step(number)
    own = record.per_client[first.name]
    assert all(math.isnan(value) for value in own.values())
    assert record.details.per_client_reasons[first.name]["auroc"].kind == "no-rows"
    line = json.loads(json.dumps(record.line()))
    assert line["per_client"][first.name]["auroc"] is None
    assert RoundRecord.from_line(line).details == record.details
    for client, metrics in record.per_client.items():
        for name, value in metrics.items():
            assert math.isfinite(value) or name in record.details.per_client_reasons[client]


def test_a_broken_model_is_evaluated_and_said_to_be_broken():
    fed = federation()
    fed.weights = fed.weights * math.nan
    evaluation = fed._evaluate(fed.schedule.rounds)
    assert evaluation.details.reasons["auroc"].kind == "not-finite"
    assert all(one["loss"].kind == "not-finite" for one in evaluation.details.per_client_reasons.values())


def test_a_test_split_of_one_class_says_why_there_is_no_auroc():
    fed = federation()
    targets = fed.evaluator.dataset.test.targets
    kept = targets.clone()
    try:
        targets.fill_(0)
        record = fed.step(1)
    finally:
        targets.copy_(kept)
    assert math.isnan(record.metrics["auroc"])
    assert record.details.reasons["auroc"].text == f"all {len(targets)} rows are of class 'negative'"
    assert record.diverged is None
    assert record.metrics["threshold"] != 0.5, "chosen on validation rows"


@pytest.mark.parametrize(("start", "first"), [("first", 1.0), ("zero", 0.25)])
def test_clients_send_the_running_average_of_their_updates(tiny, start, first):
    """With client momentum β the first round sends m₁ = g (from zero: (1−β)g), the second βm₁ + (1−β)g₂."""
    from wardround.runs.config import load_config
    from wardround.runs.runner import build

    momentum = {"client_momentum": 0.75, "client_momentum_start": start}
    federation = build(load_config({**tiny, "training": momentum}))
    plain = build(load_config(tiny))
    sent, raw = [], []
    for each, seen in ((federation, sent), (plain, raw)):
        original = each.rule.combine

        def spy(updates, context, original=original, seen=seen):
            seen.append(updates.matrix.clone())
            return original(updates, context)

        each.rule.combine = spy
        each.step(1)
    plain.weights, plain.previous_weights = federation.weights, federation.previous_weights
    federation.step(2)
    plain.step(2)
    torch.testing.assert_close(sent[0], first * raw[0])
    torch.testing.assert_close(sent[1], 0.75 * first * raw[0] + 0.25 * raw[1])


@pytest.mark.parametrize("fault", ["negated-features", "duplicate-patients", "stale-update"])
def test_every_engine_sees_the_same_fault(fault):
    same = {
        "fault": {"name": fault, "fraction": 0.34, "start": 2},
        "partition": {"name": "iid", "clients": 6},
    }
    healthy = federation(**{**same, "fault": {"name": "none"}}, engine="sequential")
    feds = [federation(**same, engine=engine) for engine in ("sequential", "vectorized", "fused")]
    for fed in (healthy, *feds):
        for number in range(1, 4):
            fed.step(number)
    for other in feds[1:]:
        assert torch.allclose(feds[0].weights, other.weights, atol=1e-4)
    assert not torch.allclose(feds[0].weights, healthy.weights, atol=1e-4)


def test_a_fault_beside_an_attack_and_a_resumed_run():
    both = {
        "fault": {"name": "stale-update", "delay": 2, "fraction": 0.34},
        "attack": {"name": "sign-flip", "fraction": 0.34, "start": 2},
        "aggregator": {"name": "oracle"},
        "partition": {"name": "iid", "clients": 6},
    }
    whole, first, second = (federation(**both) for _ in range(3))
    told = [whole.step(number) for number in range(1, 5)][-1].clients
    assert {one.client for one in told if one.byzantine} == set(whole.campaign.byzantine)
    assert {one.client for one in told if one.faulty and one.failing} == set(whole.broken.clients)
    assert not set(whole.campaign.byzantine) & set(whole.broken.clients)
    assert {one.client for one in told if one.flag} == {*whole.campaign.byzantine, *whole.broken.clients}
    for number in (1, 2):
        first.step(number)
    second.load_state_dict(first.state_dict())
    for number in (3, 4):
        second.step(number)
    assert torch.equal(whole.weights, second.weights)
