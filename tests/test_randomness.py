import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround.randomness import numpy_generator, seed_for, torch_generator

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
