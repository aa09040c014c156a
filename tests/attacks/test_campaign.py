"""Who is Byzantine, when they strike, and that knowledge is enforced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround import attacks
from wardround.attacks import Attack, Campaign, Knowledge, KnowledgeLevel, LocalData, draw_byzantine
from wardround.errors import ParameterError

CLIENTS = [f"h{i}" for i in range(6)]


class Spy(Attack):
    """Sends −1 and remembers all it was ever given."""

    name = "spy"
    level = KnowledgeLevel.OWN

    def __init__(self):
        super().__init__()
        self.calls, self.watched = [], []

    @property
    def knowledge(self):
        return self.level

    def observe(self, own, knowledge):
        self.watched.append((own, knowledge))

    def craft(self, own, knowledge):
        self.calls.append((own, knowledge))
        return -torch.ones_like(own)


def strike(campaign, matrix, round=1, clients=CLIENTS, metrics=None, **more):
    d = matrix.shape[1]
    return campaign.strike(
        matrix, clients, metrics or {}, round, torch.ones(d), torch.zeros(d), len(CLIENTS), **more
    )


@pytest.fixture
def matrix():
    return torch.arange(24.0).reshape(6, 4)


@given(n=st.integers(1, 60), fraction=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_drawn_share_is_the_nearest_whole_client(n, fraction, seed):
    clients = [f"c{i}" for i in range(n)]
    drawn = draw_byzantine(clients, fraction, seed)
    assert abs(len(drawn) - fraction * n) <= 0.5 + 1e-9
    assert drawn <= set(clients)
    assert drawn == draw_byzantine(clients, fraction, seed)


def test_seeds_draw_different_clients():
    clients = [f"c{i}" for i in range(20)]
    assert len({draw_byzantine(clients, 0.2, seed) for seed in range(20)}) > 15


def test_every_client_is_drawn_equally_often():
    clients = [f"c{i}" for i in range(10)]
    counts = dict.fromkeys(clients, 0)
    for seed in range(1000):
        for client in draw_byzantine(clients, 0.3, seed):
            counts[client] += 1
    assert all(abs(count - 300) < 5 * (1000 * 0.3 * 0.7) ** 0.5 for count in counts.values())


def test_byzantine_named_by_hand_must_exist():
    with pytest.raises(ParameterError, match=r"attack\.clients: there is no 'h9'.*known: h0"):
        Campaign(Spy(), ["h1", "h9"]).check(CLIENTS)
    Campaign(Spy(), ["h1"]).check(CLIENTS)


@pytest.mark.parametrize(
    ("start", "end", "rounds"), [(1, None, {1, 2, 3, 4, 5}), (3, None, {3, 4, 5}), (2, 4, {2, 3})]
)
def test_window(matrix, start, end, rounds):
    campaign = Campaign(Spy(), ["h1"], start, end)
    struck = {t for t in range(1, 6) if not torch.equal(strike(campaign, matrix, t)[0], matrix)}
    assert struck == rounds == {t for t in range(1, 6) if campaign.active(t)}


def test_who_is_dealt_no_attack_is_not_byzantine(matrix):
    campaign = Campaign(attacks.create("none"), CLIENTS[:3])
    assert campaign.byzantine == frozenset()
    assert campaign.record()["byzantine"] == []
    parts = [{"name": "none", "share": 0.5}, {"name": "sign-flip", "share": 0.5}]
    mixed = Campaign(attacks.create("mix", parts=parts), CLIENTS[:4])
    assert mixed.byzantine == frozenset(CLIENTS[2:4])
    sent, _ = mixed.strike(matrix, CLIENTS, {}, 1, None, None, 6)
    changed = [client for client, a, b in zip(CLIENTS, sent, matrix, strict=True) if not torch.equal(a, b)]
    assert changed == CLIENTS[2:4]


def test_an_attack_that_is_expected_must_reach_somebody():
    attack = attacks.create("sign-flip")
    with pytest.raises(ParameterError, match=r"attack 'sign-flip' reaches nobody.*of 6 clients"):
        Campaign(attack, [], is_expected=True).check(CLIENTS)
    Campaign(attack, [], is_expected=False).check(CLIENTS)
    Campaign(attacks.create("none"), [], is_expected=True).check(CLIENTS)


def test_nobody_byzantine_is_never_active(matrix):
    campaign = Campaign(Spy(), [])
    assert not campaign.active(1)
    assert strike(campaign, matrix)[0] is matrix


def test_only_the_byzantine_who_take_part_strike(matrix):
    campaign = Campaign(Spy(), ["h1", "h4"])
    sent, _ = strike(campaign, matrix[:3], clients=CLIENTS[:3])
    assert (sent[1] == -1).all()
    assert torch.equal(sent[[0, 2]], matrix[[0, 2]])


def tensors_in(value):
    """Every tensor an attack can get hold of through what it was given."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, Knowledge):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name))


@pytest.mark.parametrize("active", [True, False])
def test_own_knowledge_cannot_reach_another_client(matrix, active):
    spy = Spy()
    spy.observes = True
    campaign = Campaign(spy, ["h1", "h4"], start=1 if active else 9)
    loss = torch.arange(6.0) + 100
    strike(campaign, matrix, metrics={"loss": loss}, defence=lambda rows: pytest.fail("not for this attack"))
    seen = spy.calls if active else spy.watched
    assert [knowledge.clients for _, knowledge in seen] == [("h1",), ("h4",)]
    assert [knowledge.visible for _, knowledge in seen] == [("h1",), ("h4",)]
    for (own, knowledge), row in zip(seen, (1, 4), strict=True):
        assert torch.equal(own, matrix[[row]])
        assert knowledge.honest is None
        assert knowledge.defence is None
        assert knowledge.metrics["loss"].tolist() == [100 + row]
        foreign = {value for i in range(6) if i != row for value in [*matrix[i].tolist(), 100.0 + i]}
        public = {0.0, 1.0}  # the global models, which everyone knows
        for tensor in [own, *tensors_in(knowledge)]:
            storage = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage())
            assert not (set(storage.tolist()) & foreign) - public


def test_colluders_see_each_other_only(matrix):
    spy = Spy()
    spy.level = KnowledgeLevel.COLLUDERS
    strike(Campaign(spy, ["h4", "h1"]), matrix, metrics={"loss": torch.arange(6.0)})
    ((own, knowledge),) = spy.calls
    assert torch.equal(own, matrix[[1, 4]])
    assert torch.equal(knowledge.honest, matrix[[1, 4]])
    assert knowledge.clients == knowledge.visible == ("h1", "h4")
    assert knowledge.own_rows == (0, 1)
    assert knowledge.metrics["loss"].tolist() == [1, 4]


def test_omniscient_sees_everyone(matrix):
    spy = Spy()
    spy.level = KnowledgeLevel.OMNISCIENT
    strike(Campaign(spy, ["h4", "h1"]), matrix)
    ((own, knowledge),) = spy.calls
    assert torch.equal(knowledge.honest, matrix)
    assert knowledge.own_rows == (1, 4)
    assert torch.equal(knowledge.honest[list(knowledge.own_rows)], own)
    assert knowledge.total_clients == 6


def test_only_who_declares_it_gets_the_defence(matrix):
    spy = Spy()
    spy.knows_defence = True
    with pytest.raises(ParameterError, match="defender's rule"):
        strike(Campaign(spy, ["h1"]), matrix)
    strike(Campaign(spy, ["h1"]), matrix, defence=max)
    assert spy.calls[-1][1].defence is max


def test_observing_attackers_watch_outside_the_window_but_send_honestly(matrix):
    spy = Spy()
    spy.observes = True
    campaign = Campaign(spy, ["h1"], start=3)
    sent, _ = strike(campaign, matrix, round=1)
    assert torch.equal(sent, matrix)
    assert len(spy.watched) == 1
    assert not spy.calls


def test_record_says_who_when_and_what_is_known():
    campaign = Campaign(attacks.create("alie", knowledge="colluders"), ["b", "a"], start=15, end=30)
    assert campaign.record() == {
        "attack": "alie",
        "parameters": {"k": 2.5, "match_norm": False, "keep": "nothing", "knowledge": "colluders"},
        "knowledge": "colluders",
        "knows_defence": False,
        "byzantine": ["a", "b"],
        "parts": [{"attack": "alie", "knowledge": "colluders", "clients": ["b", "a"]}],
        "start": 15,
        "end": 30,
    }


def test_data_is_poisoned_once_and_only_used_inside_the_window():
    campaign = Campaign(attacks.create("label-flip", p=0.5), ["h1", "h2"], start=2, end=4, seed=1)
    data = LocalData(torch.zeros(200, 1), torch.arange(200) % 3, 3)
    assert campaign.poison("h1", data, 1) is data
    poisoned = campaign.poison("h1", data, 2)
    assert not torch.equal(poisoned.targets, data.targets)
    assert campaign.poison("h1", data, 3) is poisoned
    assert campaign.poison("h1", data, 4) is data
    assert campaign.poison("h0", data, 2) is data
    assert not torch.equal(campaign.poison("h2", data, 2).targets, poisoned.targets)
    fresh = Campaign(attacks.create("label-flip", p=0.5), ["h1"], start=1, seed=1)
    assert torch.equal(fresh.poison("h1", data, 7).targets, poisoned.targets)


def test_rows_of_a_client_do_not_depend_on_who_else_strikes(matrix):
    noise = attacks.create("noise")
    alone, _ = strike(Campaign(noise, ["h4"], seed=3), matrix)
    together, _ = strike(Campaign(noise, ["h1", "h4", "h5"], seed=3), matrix)
    assert torch.equal(alone[4], together[4])
    assert not torch.equal(strike(Campaign(noise, ["h4"], seed=4), matrix)[0][4], alone[4])
    assert not torch.equal(strike(Campaign(noise, ["h4"], seed=3), matrix, round=2)[0][4], alone[4])


@pytest.mark.parametrize("name", ["alie", "mix", "noise"])
def test_in_place_sends_the_same_without_a_copy(matrix, name):
    campaign = Campaign(attacks.create(name), ["h1", "h4"], seed=2)
    copied, _ = strike(campaign, matrix)
    assert copied is not matrix
    own = matrix.clone()
    overwritten, _ = strike(campaign, own, in_place=True)
    assert overwritten is own
    assert torch.equal(overwritten, copied)
