"""Mixtures: who does what, and that each part keeps to its own knowledge, data, metrics and state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround import Aggregation, attacks
from wardround.attacks import Campaign, KnowledgeLevel, LocalData
from wardround.attacks.mix import apportion
from wardround.errors import ParameterError

CLIENTS = [f"c{i}" for i in range(10)]


@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    total=st.integers(0, 50),
)
def test_apportionment_is_whole_complete_and_within_one(weights, total):
    shares = [weight / sum(weights) for weight in weights]
    counts = apportion(shares, total)
    assert sum(counts) == total
    assert all(abs(count - share * total) < 1 + 1e-9 for count, share in zip(counts, shares, strict=True))


def parts(*specs):
    return attacks.create(
        "mix", parts=[{"name": name, "share": share, **more} for name, share, more in specs]
    )


def strike(campaign, matrix, round=1, **more):
    d = matrix.shape[1]
    weights = torch.zeros(d, dtype=matrix.dtype)
    return campaign.strike(matrix, CLIENTS, more.pop("metrics", {}), round, weights, weights - 1, 10, **more)


def test_the_largest_remainder_gets_what_is_left():
    assert apportion([0.7, 0.3], 4) == [3, 1], "2.8 and 1.2"
    assert apportion([0.3, 0.7], 4) == [1, 3]
    assert apportion([0.55, 0.3, 0.15], 4) == [2, 1, 1], "2.2, 1.2 and 0.6"


def test_listed_clients_are_dealt_out_in_their_order(honest):
    mix = parts(
        ("sign-flip", 0.5, {"scale": 1}),
        ("scaling", 0.25, {"factor": 100}),
        ("scaling", 0.25, {"factor": -0.5}),
    )
    sent, _ = strike(Campaign(mix, ["c8", "c1", "c5", "c2"]), honest)
    for row, factor in {8: -1, 1: -1, 5: 100, 2: -0.5}.items():
        torch.testing.assert_close(sent[row], factor * honest[row])


def test_drawn_clients_are_dealt_out_by_the_seed():
    drawn = frozenset(CLIENTS[:4])
    mix = parts(("noise", 0.5, {}), ("label-flip", 0.5, {}))

    def first(seed):
        return frozenset(Campaign(mix, drawn, seed=seed).parts[0][1])

    assert first(3) == first(3)
    assert len(first(3)) == 2
    assert len({first(seed) for seed in range(40)}) == 6  # every pair has its turn


def test_who_is_absent_changes_nobodys_part(honest):
    mix = parts(("sign-flip", 0.5, {"scale": 1}), ("scaling", 0.5, {"factor": 2}))
    campaign = Campaign(mix, ["c0", "c1"])
    present = CLIENTS[1:]
    weights = honest[0]
    sent, _ = campaign.strike(honest[1:], present, {}, 1, weights, weights, 10)
    torch.testing.assert_close(sent[0], 2 * honest[1])


def test_each_part_sees_what_it_may(honest, monkeypatch):
    seen = {}

    def spy(self, own, knowledge):
        seen.setdefault(self.name, []).append(knowledge)
        return own

    for name in ("sign-flip", "slow-drift", "ipm"):
        monkeypatch.setattr(attacks.registry.get(name), "craft", spy)
    mix = parts(("sign-flip", 0.5, {}), ("slow-drift", 0.25, {}), ("ipm", 0.25, {}))
    strike(Campaign(mix, ["c0", "c1", "c2", "c3"]), honest)
    assert mix.knowledge is KnowledgeLevel.OMNISCIENT
    assert [view.honest for view in seen["sign-flip"]] == [None, None]
    assert torch.equal(seen["slow-drift"][0].honest, honest[:4])  # every colluder, whatever it does
    assert seen["slow-drift"][0].own_rows == (2,)
    assert torch.equal(seen["ipm"][0].honest, honest)
    assert seen["ipm"][0].own_rows == (3,)


def test_enforced_also_outside_a_campaign(honest, knowledge, monkeypatch):
    seen = []

    def spy(self, own, knowledge):
        seen.append((own, knowledge.honest))
        return own

    monkeypatch.setattr(attacks.registry.get("sign-flip"), "craft", spy)
    mix = parts(("sign-flip", 0.5, {}), ("ipm", 0.5, {}))
    rows = mix.craft(honest[:4], knowledge(4))
    assert [(len(own), known) for own, known in seen] == [(1, None), (1, None)]
    torch.testing.assert_close(rows[2:], attacks.create("ipm").craft(honest[2:4], knowledge(2)))


def test_data_is_poisoned_for_the_flippers_only():
    mix = parts(("noise", 0.5, {}), ("label-flip", 0.5, {"p": 1}))
    campaign = Campaign(mix, ["c0", "c1"])
    data = LocalData(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), 2)
    assert mix.poisons_data
    assert campaign.poison("c0", data, 1) is data
    assert torch.equal(campaign.poison("c1", data, 1).targets, 1 - data.targets)
    assert not parts(("noise", 1.0, {})).poisons_data


def test_lies_about_metrics_stay_with_the_liars(honest, knowledge):
    mix = parts(("score-lie", 0.5, {"factor": 4}), ("sign-flip", 0.5, {}))
    loss = torch.ones(10)
    _, reported = strike(Campaign(mix, ["c2", "c3"]), honest, metrics={"loss": loss})
    assert reported["loss"].tolist() == [1, 1, 0.25, 1, 1, 1, 1, 1, 1, 1]
    direct = mix.report({"loss": torch.ones(2)}, knowledge(2))
    assert direct["loss"].tolist() == [0.25, 1]


def test_state_is_kept_part_by_part(honest):
    specs = [("slow-drift", 0.5, {"ramp": 2}), ("profile-aware", 0.5, {})]
    first, second = parts(*specs), parts(*specs)
    campaign = Campaign(first, ["c0", "c1"])
    for t in (1, 2, 3):
        strike(campaign, honest * t, t)
    second.load_state_dict(first.state_dict())
    expected, _ = strike(campaign, -honest, 4)
    got, _ = strike(Campaign(second, ["c0", "c1"]), -honest, 4)
    assert torch.equal(got, expected)
    assert not torch.equal(got[:2], -honest[:2])


def test_observers_in_a_mixture_watch_before_the_window(honest):
    mix = parts(("profile-aware", 0.5, {}), ("sign-flip", 0.5, {}))
    campaign = Campaign(mix, ["c0", "c1"], start=3)
    for t in (1, 2):
        sent, _ = strike(campaign, honest, t)
        assert torch.equal(sent, honest)
    assert list(mix.parts[0].past) == ["c0"]


def test_the_defence_is_seen_from_the_part_that_knows_it(honest):
    mix = parts(("sign-flip", 0.5, {"scale": 1}), ("agr-tailored", 0.5, {"steps": 0, "halvings": 1}))
    rounds = []

    def defence(rows):
        rounds.append(rows.clone())
        return Aggregation(rows.mean(0))

    strike(Campaign(mix, ["c4", "c2"]), honest, defence=defence)
    assert rounds
    for rows in rounds:  # in the order of the round: c2 tries, c4 has flipped its sign already
        assert rows.shape == (2, honest.shape[1])
        torch.testing.assert_close(rows[1], -honest[4])
        assert not torch.equal(rows[0], honest[2])


def test_record_names_every_part():
    campaign = Campaign(attacks.create("mix"), ["a", "b", "c"])
    record = campaign.record()
    assert [(part["attack"], part["clients"]) for part in record["parts"]] == [
        ("noise", ["a", "b"]),
        ("label-flip", ["c"]),
    ]
    assert record["parameters"]["parts"][1]["p"] == 0.8  # defaults included


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"name": "noise", "share": 0.5}], "shares must sum to 1, got 0.5"),
        ([{"name": "noise"}], r"parts\.0: 'share' must be above 0"),
        ([{"share": 1}], r"parts\.0: 'name' must be"),
        ([{"name": "mix", "share": 1}], "other than mix"),
        ([{"name": "nose", "share": 1}], r"parts\.0: unknown attack 'nose'; did you mean 'noise'"),
        (
            [{"name": "noise", "share": 1, "skale": 2}],
            r"parts\.0: attack 'noise': unknown key 'skale'.*'scale'",
        ),
        ([], "at least 1"),
    ],
)
def test_mistakes_are_said_with_their_place(given, message):
    with pytest.raises(ParameterError, match=message):
        attacks.create("mix", parts=given)
