"""The backdoor: where triggers are stamped, which labels change, and how success is counted."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from wardround import attacks
from wardround.attacks import LocalData
from wardround.attacks.backdoor import Backdoor
from wardround.errors import ParameterError
from wardround.runs.config import load_config
from wardround.runs.runner import build


def generator():
    return torch.Generator().manual_seed(0)


def test_patch_is_in_the_lower_right_corner_of_every_channel():
    images = torch.zeros(2, 3, 8, 9)
    stamped = attacks.create("backdoor", patch=2, value=5).trigger(images)
    expected = images.clone()
    expected[:, :, 6:, 7:] = 5
    assert torch.equal(stamped, expected)
    assert not images.any()


def test_stored_images_get_their_brightest_value():
    stamped = attacks.create("backdoor").trigger(torch.zeros(1, 1, 5, 5, dtype=torch.uint8))
    assert stamped.dtype == torch.uint8
    assert stamped.sum() == 9 * 255
    with pytest.raises(ParameterError, match="whole number from 0 to 255"):
        attacks.create("backdoor", value=300).trigger(torch.zeros(1, 1, 5, 5, dtype=torch.uint8))


def test_tables_and_series_get_their_features_set():
    attack = attacks.create("backdoor", features=[1, -1], value=9)
    table = attack.trigger(torch.zeros(3, 4))
    assert table.tolist() == [[0, 9, 0, 9]] * 3
    series = attack.trigger(torch.zeros(2, 5, 4))
    assert torch.equal(series, torch.tensor([0.0, 9, 0, 9]).expand(2, 5, 4))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.33, 1.0])
def test_a_share_of_the_samples_is_triggered_and_relabelled(share):
    data = LocalData(torch.zeros(101, 6), torch.ones(101, dtype=torch.long), 3)
    attack = attacks.create("backdoor", share=share, target=2)
    poisoned = attack.poison(data, generator())
    triggered = (poisoned.inputs[:, :3] == 3).all(1)
    assert int(triggered.sum()) == math.floor(share * 101 + 0.5)
    assert torch.equal(poisoned.targets == 2, triggered)
    assert torch.equal(poisoned.inputs[triggered], attack.trigger(data.inputs[triggered]))
    assert torch.equal(poisoned.inputs[~triggered], data.inputs[~triggered])
    assert not data.inputs.any()


def test_other_findings_stay():
    data = LocalData(torch.zeros(10, 3), torch.eye(10, 4), 4, multi_label=True)
    poisoned = attacks.create("backdoor", share=1, target=1).poison(data, generator())
    assert (poisoned.targets[:, 1] == 1).all()
    assert torch.equal(poisoned.targets[:, [0, 2, 3]], data.targets[:, [0, 2, 3]])


def test_success_counts_only_those_not_of_the_target_class():
    attack = attacks.create("backdoor", target=1)
    truth = torch.tensor([0, 1, 2, 1, 0])
    assert attack.victims(truth).tolist() == [True, False, True, False, True]
    assert attack.success(torch.tensor([1, 1, 2, 0, 1]), truth) == pytest.approx(2 / 3)
    assert math.isnan(attack.success(torch.tensor([1]), torch.tensor([1])))


def test_success_with_several_labels():
    attack = attacks.create("backdoor", target=0)
    truth = torch.tensor([[0, 1], [1, 1], [0, 0], [0, 0]])
    predicted = torch.tensor([[1, 0], [1, 0], [0, 1], [1, 1]])
    assert attack.success(predicted, truth) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_a_model_learns_the_backdoor():
    """End to end on a small problem: triggered samples are given the target, clean ones are not."""
    g = generator()
    inputs = torch.randn(600, 8, generator=g)
    truth = (inputs[:, 5] > 0).long()
    attack = attacks.create("backdoor", features=[0, 1], target=1)
    poisoned = attack.poison(LocalData(inputs, truth, 2), g)
    weights = torch.zeros(9, 2, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=50)

    def logits(x):
        return torch.cat([x, torch.ones(len(x), 1)], 1) @ weights

    def loss():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(logits(poisoned.inputs), poisoned.targets)
        value.backward()
        return value

    optimiser.step(loss)
    test = torch.randn(400, 8, generator=g)
    labels = (test[:, 5] > 0).long()
    clean = attack.success(logits(test).argmax(1), labels)
    triggered = attack.success(logits(attack.trigger(test)).argmax(1), labels)
    assert triggered > 0.8
    assert clean < 0.4


def test_what_does_not_fit_is_said():
    with pytest.raises(ParameterError, match="patch of 9 × 9 does not fit inputs of 1 × 4 × 4"):
        attacks.create("backdoor", patch=9).trigger(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ParameterError, match="features must be below 2, got 2"):
        attacks.create("backdoor").trigger(torch.zeros(1, 2))
    data = LocalData(torch.zeros(1, 3), torch.zeros(1, dtype=torch.long), 2)
    with pytest.raises(ParameterError, match="target must be below 2, got 4"):
        attacks.create("backdoor", target=4).poison(data, generator())


def test_offered_to_evaluation_also_inside_a_mixture():
    mix = attacks.create("mix", parts=[{"name": "noise", "share": 0.5}, {"name": "backdoor", "share": 0.5}])
    (found,) = mix.backdoors
    assert found.target == 1
    assert attacks.create("noise").backdoors == ()


# Every backdoor works against FedAvg: high attack success, while the model stays as good as it was without attack.
ROUNDS = 12
BACKDOORS = {
    "backdoor": {"fraction": 0.4},  # not boosted: it needs more attackers
    "model-replacement": {"alpha": 0.5},
    "dba": {"fraction": 0.4},  # one attacker per part of the trigger
    "neurotoxin": {"boost": 2.0},
    "pgd-backdoor": {"boost": 3.0, "radius": 5.0},
    "edge-case": {},
}


def federation(attack):
    return build(
        load_config(
            {
                "name": "backdoors",
                "dataset": {"name": "digits"},
                "partition": {"name": "iid", "clients": 10},
                "model": {"name": "mlp", "hidden": [32]},
                "training": {"lr": 0.005, "epochs": 2},
                "rounds": ROUNDS,
                "evaluate_every": ROUNDS,
                "attack": attack,
            }
        )
    )


def after_all_rounds(federation):
    for number in range(1, ROUNDS + 1):
        record = federation.step(number)
    return record.metrics


@cache
def clean():
    """A federation that nobody has attacked, and its metrics."""
    honest = federation({"name": "none"})
    return honest, after_all_rounds(honest)


def test_all_of_them_are_here():
    known = {name for name in attacks.available() if issubclass(attacks.registry.get(name), Backdoor)}
    assert known == set(BACKDOORS)


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKDOORS)
def test_it_succeeds_against_fedavg_while_the_model_stays_good(name):
    attacked = federation({"name": name, "fraction": 0.2, "start": 4, **BACKDOORS[name]})
    metrics = after_all_rounds(attacked)
    honest, before = clean()
    assert metrics["attack_success"] > 0.9
    assert metrics["attack_success_without_trigger"] < 0.2
    assert metrics["accuracy"] > before["accuracy"] - 0.05
    # A model without the backdoor answers to the same samples otherwise.
    honest.evaluator.backdoors = (attacked.campaign.attack,)
    untaught = honest.evaluator.measure(honest.weights)[0].metrics
    assert untaught["attack_success"] < 0.5
