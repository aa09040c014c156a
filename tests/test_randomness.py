import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wardround
from wardround.attacks import Campaign, DataAttack, Knowledge, draw_byzantine
from wardround.randomness import numpy_generator, seed_for, selection_generator, torch_generator

part = st.one_of(st.integers(0, 2**40), st.text(max_size=8))


@given(st.lists(part, min_size=1, max_size=4).map(tuple), st.lists(part, min_size=1, max_size=4).map(tuple))
def test_different_paths_have_different_seeds_and_equal_ones_the_same(one, other):
    assert seed_for(*one) == seed_for(*one)
    assert (seed_for(*one) == seed_for(*other)) == (one == other)


def test_seeds_fit_every_generator():
    assert 0 <= seed_for(0, "x") < 2**63
    assert numpy_generator(1, "a").random() == numpy_generator(1, "a").random()
    assert torch.equal(
        torch.rand(3, generator=torch_generator(1, "a")), torch.rand(3, generator=torch_generator(1, "a"))
    )


def test_global_random_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_generator(0, "x"))
    assert torch.equal(before, torch.get_rng_state())


LIBRARY = Path(wardround.__file__).parent
OWN_WAYS = {"default_rng", "SeedSequence", "RandomState", "manual_seed", "seed"}
BUILDS_NETWORKS = (
    "reproducible_networks.py"  # layers take no generator: the global state is set, and put back
)


@pytest.mark.parametrize("package", ["aggregators", "attacks"])
def test_rules_and_attacks_have_no_way_of_their_own_to_derive_randomness(package):
    for file in (LIBRARY / package).rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        own = {call.attr for call in calls if isinstance(call, ast.Attribute)} & OWN_WAYS
        assert not own or file.name == BUILDS_NETWORKS, f"{file.name}: {', '.join(own)}"


def test_draws_of_an_attack_are_named_by_seed_round_and_client():
    def first(generator):
        return torch.rand(3, generator=generator).tolist()

    knowledge = Knowledge(round=4, clients=("a", "b"), seed=9)
    assert first(knowledge.generator(1)) == first(torch_generator(9, "attack", 4, "b"))
    assert first(Knowledge(round=4, seed=9).generator(1)) == first(torch_generator(9, "attack", 4, "row-1"))

    drawn = {}

    class Draws(DataAttack):
        name = "draws"

        def poison(self, data, generator):
            drawn[len(drawn)] = first(generator)
            return data

    campaign = Campaign(Draws(), ["a", "b"], seed=9)
    data = wardround.attacks.LocalData(torch.zeros(1, 1), torch.zeros(1), 2)
    for client in ("a", "b", "a"):
        campaign.poison(client, data, 1)
    assert list(drawn.values()) == [first(torch_generator(9, "poison", client)) for client in ("a", "b")]


def test_who_is_byzantine_stays_who_it_was():
    """Results that were published depend on it."""
    clients = [f"hospital-{i:02d}" for i in range(20)]
    byzantine = ["hospital-05", "hospital-10", "hospital-13", "hospital-16"]
    assert sorted(draw_byzantine(clients, 0.2, seed=0)) == byzantine
    order = selection_generator(0, "byzantine").permutation(20)
    assert sorted(clients[i] for i in order[:4]) == byzantine
