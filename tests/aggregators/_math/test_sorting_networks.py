import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.aggregators._math.sorting_networks import selecting, sorting_network


def run(network, values):
    values = list(values)
    for low, high in network:
        values[low], values[high] = min(values[low], values[high]), max(values[low], values[high])
    return values


@pytest.mark.parametrize("n", range(1, 11))
def test_every_sequence_of_zeros_and_ones_is_sorted(n):
    """Knuth's zero-one principle: a network that sorts these sorts everything."""
    for values in itertools.product((0, 1), repeat=n):
        assert run(sorting_network(n), values) == sorted(values)


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=130), st.data())
def test_large_networks_sort_and_select(values, data):
    network = sorting_network(len(values))
    assert run(network, values) == sorted(values)
    first = data.draw(st.integers(0, len(values) - 1))
    wanted = slice(first, data.draw(st.integers(first + 1, len(values))))
    found = run(selecting(network, range(len(values))[wanted]), values)
    assert sorted(found[wanted]) == sorted(values)[wanted]


@pytest.mark.parametrize("dropped", range(5))
def test_every_sequence_of_zeros_and_ones_is_trimmed(dropped):
    kept = slice(dropped, 10 - dropped)
    network = selecting(sorting_network(10), range(10)[kept])
    for values in itertools.product((0, 1), repeat=10):
        assert sum(run(network, values)[kept]) == sum(sorted(values)[kept])


def test_selecting_leaves_out_comparators():
    network = sorting_network(50)
    assert len(selecting(network, [24, 25])) < 0.9 * len(network)
    assert selecting(network, range(50)) == []
