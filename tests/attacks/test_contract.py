"""What every attack promises, whatever it does."""

from __future__ import annotations

import copy

import pytest
import torch

from wardround import Aggregation, attacks
from wardround.attacks import Campaign, KnowledgeLevel, LocalData
from wardround.errors import ParameterError

ALL = attacks.available()
DESIGNED = {
    "additive-noise", "agr-tailored", "alie", "backdoor", "crafted", "fang-krum", "fang-trimmed-mean", "ipm",
    "label-flip", "mimic", "min-max", "min-sum", "mix", "noise", "none", "partial-scaling", "profile-aware",
    "scaling", "score-lie", "sign-flip", "slow-drift", "model-replacement", "dba", "neurotoxin", "pgd-backdoor",
    "edge-case", "free-rider", "optimal-alie", "optimal-ipm",
}  # fmt: skip


def test_every_attack_of_the_design_is_there_and_sorted():
    assert set(ALL) >= DESIGNED
    assert sorted(ALL) == ALL


@pytest.fixture(params=ALL)
def name(request):
    return request.param


@pytest.mark.parametrize("byzantine", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_have_shape_and_dtype_and_are_finite(name, byzantine, dtype, honest, knowledge):
    honest = honest.to(dtype)
    own = honest[:byzantine]
    rows = attacks.create(name).craft(own, knowledge(byzantine, honest=honest))
    assert rows.shape == own.shape
    assert rows.dtype == dtype
    assert torch.isfinite(rows).all()


@pytest.mark.parametrize("extent", ["everything", "nothing but the round"])
def test_inputs_stay_unchanged(name, extent, honest, knowledge):
    own = honest[:3].clone()
    known = knowledge() if extent == "everything" else attacks.Knowledge(round=1)
    before = copy.deepcopy((own, known.honest, known.global_weights, known.previous_global_weights))
    attack = attacks.create(name)
    rows = attack.craft(own, known)
    rows += 1  # what is returned may be changed without reaching the honest updates
    if name not in ("none", "label-flip", "backdoor", "edge-case", "score-lie"):  # these send `own` itself
        after = own, known.honest, known.global_weights, known.previous_global_weights
        for old, new in zip(before, after, strict=True):
            assert (old is None and new is None) or torch.equal(old, new)


def test_same_knowledge_gives_the_same_rows(name, honest, knowledge):
    torch.manual_seed(0)
    first = attacks.create(name).craft(honest[:3], knowledge())
    torch.manual_seed(1)  # global randomness has no say
    attack = attacks.create(name)
    assert torch.equal(attack.craft(honest[:3], knowledge()), first)
    assert torch.equal(attack.craft(honest[:3], knowledge()), first)


def test_state_survives_saving_in_the_middle(name, honest, knowledge):
    generator = torch.Generator().manual_seed(3)
    rounds = [honest + torch.randn(honest.shape, generator=generator).double() for _ in range(6)]

    def play(attack, some):
        return [attack.craft(rounds[t][:3], knowledge(round=t + 1, honest=rounds[t])) for t in some]

    unbroken = attacks.create(name)
    expected = play(unbroken, range(6))
    before = attacks.create(name)
    play(before, range(3))
    after = attacks.create(name)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for got, want in zip(play(after, range(3, 6)), expected[3:], strict=True):
        assert torch.equal(got, want)


def test_saved_state_is_not_changed_by_going_on(name, honest, knowledge):
    attack = attacks.create(name)
    for t in (1, 2, 3):
        attack.craft(honest[:3] * t, knowledge(round=t))
    state = attack.state_dict()
    kept = copy.deepcopy(state)
    for t in (4, 5):
        attack.craft(honest[:3] * t, knowledge(round=t))
    assert repr(state) == repr(kept)


def test_poisoned_data_keeps_its_form(name):
    attack = attacks.create(name)
    generator = torch.Generator().manual_seed(0)
    data = LocalData(torch.randn(20, 4, generator=generator), torch.arange(20) % 3, num_classes=3)
    poisoned = attack.poison(data, generator)
    assert poisoned.inputs.shape == data.inputs.shape
    assert poisoned.inputs.dtype == data.inputs.dtype
    assert poisoned.targets.shape == data.targets.shape
    assert poisoned.targets.dtype == data.targets.dtype
    assert torch.equal(data.targets, torch.arange(20) % 3)


def test_a_whole_campaign_touches_only_byzantine_rows(name, honest):
    clients = [f"c{i}" for i in range(10)]
    campaign = Campaign(attacks.create(name), ["c4", "c2", "c7"])
    weights = torch.zeros(honest.shape[1], dtype=honest.dtype)
    loss = torch.linspace(0.5, 1, 10, dtype=torch.float64)

    def mean_of_round(rows):
        everyone = honest.clone()
        everyone[[2, 4, 7]] = rows
        return Aggregation(everyone.mean(0))

    before = honest.clone()
    for t in (1, 2, 3):
        sent, reported = campaign.strike(
            honest, clients, {"loss": loss}, t, weights + t, weights + t - 1, 10, mean_of_round
        )
        others = [i for i in range(10) if i not in (2, 4, 7)]
        assert torch.equal(sent[others], honest[others])
        assert torch.equal(reported["loss"][others], loss[others])
        assert torch.equal(honest, before)
        assert torch.isfinite(sent).all()
        assert torch.isfinite(reported["loss"]).all()


def test_described_for_listings(name):
    entry = attacks.describe(name)
    assert entry["summary"]
    assert entry["knowledge"]
    assert set(entry["knowledge"]) <= {level.value for level in KnowledgeLevel}
    assert set(entry["parameters"]) == set(attacks.registry.get(name).Params.model_fields)
    assert name == "none" or entry["lies_in"]


def test_parameters_are_recorded_plainly_and_can_be_given_back(name):
    attack = attacks.create(name)
    recorded = Campaign(attack, ["a"]).record()
    again = attacks.create(name, **recorded["parameters"])
    assert again.params == attack.params


def test_unknown_parameter_is_named(name):
    with pytest.raises(ParameterError, match="no_such_key"):
        attacks.create(name, no_such_key=1)


def test_unknown_attack_lists_the_known():
    with pytest.raises(ParameterError, match="did you mean 'sign-flip'"):
        attacks.create("sign-flap")
