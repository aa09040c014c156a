import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.aggregators._math.sorting_networks import pruned, sorting_network


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
def test_large_networks_sort_and_pruned_ones_place_what_is_wanted(values, data):
    network = sorting_network(len(values))
    assert run(network, values) == sorted(values)
    wire = data.draw(st.integers(0, len(values) - 1))
    assert run(pruned(network, [wire]), values)[wire] == sorted(values)[wire]


def test_pruning_leaves_out_comparators_for_a_median():
    network = sorting_network(50)
    assert len(pruned(network, [24, 25])) < 0.9 * len(network)
