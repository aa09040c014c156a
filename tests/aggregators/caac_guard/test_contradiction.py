"""Who contradicts the others: the geometry by hand, as properties, and on networks that were really trained."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wardround import Updates
from wardround.aggregators.caac_guard.contradiction import find_contradicting, output_bias_steps
from wardround.updates import Layout


def plane(degrees):
    """Unit rows at these angles, and their bias steps: to the negative class up to 90°, to the positive beyond."""
    angles = torch.deg2rad(torch.as_tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], 1), -angles.cos()


KINDS = [1.0, 2.0, 4.0, 5.0, 7.0, 9.0, 10.0, 11.0, 163.0, 165.0, 168.0, 172.0, 75.0]
one_kind = st.lists(st.floats(0, 15), min_size=4, max_size=10)
other_kind = st.lists(st.floats(160, 172), min_size=4, max_size=10)
mixed = st.lists(st.floats(60, 120), max_size=5)


def accused(rows, bias_steps):
    return find_contradicting(rows @ rows.T, bias_steps).accused.nonzero().flatten().tolist()


def test_honest_clients_of_both_kinds_and_between_contradict_nobody():
    assert accused(*plane(KINDS)) == []


@pytest.mark.parametrize("reversed_rows", [[0], [8], [0, 9], [1, 5, 10]])
def test_reversed_rows_of_either_kind_are_named(reversed_rows):
    rows, bias_steps = plane(KINDS)
    rows[reversed_rows] *= -1
    bias_steps[reversed_rows] *= -1
    assert accused(rows, bias_steps) == reversed_rows


def test_of_many_reversed_rows_the_output_bias_tells_which():
    """Eight of sixteen of a kind: to who only counts, a line that accuses the other eight is as good."""
    rows, bias_steps = plane(
        [*[2.0] * 4, *range(4, 16), 160.0, 163.0, 166.0, 169.0, 172.0, 60.0, 90.0, 120.0]
    )
    flipped = [4, 5, 6, 7, 8, 9, 10, 11]
    rows[flipped] *= -1
    bias_steps[flipped] *= -1
    assert accused(rows, bias_steps) == flipped
    misleading = -rows[:, 1]  # a bias that grows across the border, not along it
    assert accused(rows, misleading) != flipped


@settings(max_examples=100, deadline=None)
@given(one_kind, other_kind, mixed, st.data())
def test_where_few_contradict_the_output_bias_has_no_say(one, other, between, data):
    rows, bias_steps = plane(one + other + between)
    flip = data.draw(st.integers(0, len(rows) - 1))
    rows[flip] *= -1
    bias_steps[flip] *= -1
    nonsense = torch.tensor(data.draw(st.lists(st.floats(-1, 1), min_size=len(rows), max_size=len(rows))))
    assert accused(rows, bias_steps) == accused(rows, nonsense.double())


def test_where_all_see_both_classes_alike_reversed_rows_are_named():
    rows, bias_steps = plane([40.0, 44.0, 47.0, 50.0, 52.0, 55.0, 58.0, 61.0])
    rows[3] *= -1
    bias_steps[3] *= -1
    assert accused(rows, bias_steps) == [3]


@settings(max_examples=100, deadline=None)
@given(one_kind, other_kind, mixed, st.data())
def test_a_federation_is_presumed_honest(one, other, between, data):
    """Never more are accused than were reversed, and none where none was."""
    rows, bias_steps = plane(one + other + between)
    assert accused(rows, bias_steps) == []
    flip = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    rows[flip] *= -1
    bias_steps[flip] *= -1
    count = len(accused(rows, bias_steps))
    assert count <= min(int(flip.sum()), len(rows) - int(flip.sum()))


@settings(max_examples=50, deadline=None)
@given(one_kind, other_kind, st.integers(0, 2**20))
def test_neither_order_nor_a_common_reversal_matters(one, other, seed):
    rows, bias_steps = plane(one + other)
    rows[::4] *= -1
    bias_steps[::4] *= -1
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    result = find_contradicting(rows @ rows.T, bias_steps)
    permuted = find_contradicting((rows @ rows.T)[order][:, order], bias_steps[order])
    assert int(result.accused.sum()) == int(permuted.accused.sum())
    assert accused(-rows, -bias_steps) == result.accused.nonzero().flatten().tolist()


def test_few_clients_or_no_empty_sector_say_nothing():
    rows, bias_steps = plane([0.0, 5.0, 170.0, 175.0, 90.0])
    assert find_contradicting(rows @ rows.T, bias_steps) is None
    everywhere, bias_steps = plane(torch.arange(0, 180, 5.0))
    assert find_contradicting(everywhere @ everywhere.T, bias_steps) is None


def test_the_output_bias_is_the_last_parameter_of_a_network_with_one_output():
    def steps(network):
        layout = Layout.of(network)
        return output_bias_steps(Updates(torch.arange(2.0 * layout.size).view(2, -1), layout=layout))

    lengths = [sum(x * x for x in range(start, start + 21)) ** 0.5 for start in (0, 21)]
    assert steps(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))).tolist() == pytest.approx(
        [20 / lengths[0], 41 / lengths[1]]
    )
    assert steps(nn.Linear(3, 1, bias=False)) is None
    assert steps(nn.Linear(3, 2)) is None
    assert steps(nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))) is None
    assert output_bias_steps(Updates(torch.ones(2, 5))) is None


@pytest.mark.parametrize("seed", range(5))
def test_hospitals_with_one_class_each_are_told_from_reversed_ones_by_a_network_that_was_really_trained(seed):
    """Plain gradient steps of a small network from scratch: nothing of the engine's, and no Adam."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(10, generator=generator)
    network = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    for parameter in network.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)

    def update(share_positive):
        labels = (torch.rand(200, generator=generator) < share_positive).float()
        inputs = torch.randn(200, 10, generator=generator) + (2 * labels[:, None] - 1) * 0.5 * direction
        loss = nn.functional.binary_cross_entropy_with_logits(network(inputs)[:, 0], labels)
        return torch.cat([-g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])

    shares = [0.0] * 9 + [1.0] * 7 + [0.3, 0.5, 0.7, 0.9]
    rows = torch.stack([update(share) for share in shares]).double()
    units = rows / rows.norm(dim=1, keepdim=True)
    assert not find_contradicting(units @ units.T, units[:, -1]).accused.any()
    attackers = torch.tensor([0, 3, 10])
    units[attackers] *= -1
    result = find_contradicting(units @ units.T, units[:, -1])
    assert result.accused.nonzero().flatten().tolist() == attackers.tolist()
    assert result.clear


def test_where_chance_rules_the_rows_it_is_not_clear_enough_to_name_anyone():
    rows, bias_steps = plane(KINDS)
    wide = torch.cat([rows, 3 * torch.randn(len(rows), 300, generator=torch.Generator().manual_seed(0))], 1)
    units = wide / wide.norm(dim=1, keepdim=True)
    result = find_contradicting(units @ units.T, bias_steps)
    assert result is None or not result.clear
