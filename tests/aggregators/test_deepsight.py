"""DeepSight: what it reads of the output layer, and the clusters it leaves out."""

import torch

from wardround import Layout, Updates, aggregators
from wardround.aggregators.base import Context
from wardround.aggregators.deepsight import _cosine_distances, output_layer

LAYOUT = Layout(("hidden.weight", "hidden.bias", "out.weight", "out.bias"), ((4, 3), (4,), (5, 4), (5,)))


def rows_with(attackers, n=12, seed=0):
    """Honest clients move all five classes; attackers one, and hardly anything else."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(LAYOUT.size, generator=generator) + 0.1 * torch.randn(
        n, LAYOUT.size, generator=generator
    )
    rows[:attackers] *= 1e-3
    out = LAYOUT.slices["out.weight"]
    rows[:attackers, out.start : out.start + 4] = 5.0
    rows[:attackers, LAYOUT.slices["out.bias"].start] = 5.0
    return rows


def test_energies_are_those_of_the_output_layer():
    rows = rows_with(2)
    energies, biases = output_layer(Updates(rows, layout=LAYOUT))
    weight, bias = LAYOUT.slices["out.weight"], LAYOUT.slices["out.bias"]
    expected = rows[:, weight].view(12, 5, 4).abs().sum(2) + rows[:, bias].abs()
    torch.testing.assert_close(
        energies, (expected / expected.amax(1, keepdim=True)).double(), rtol=1e-5, atol=1e-7
    )
    assert biases.shape == (12, 5)


def test_without_a_bias_and_without_a_layout_there_is_something_to_read():
    bare = Layout(("out.weight",), ((5, 4),))
    energies, biases = output_layer(Updates(torch.randn(3, 20), layout=bare))
    assert energies.shape == biases.shape == (3, 5)
    energies, biases = output_layer(Updates(torch.randn(3, 20)))
    assert energies.shape == biases.shape == (3, 20)


def test_clients_that_train_one_label_are_left_out():
    for attackers in (2, 3, 5):
        rows = rows_with(attackers)
        out = aggregators.create("deepsight").aggregate(
            Updates(rows, layout=LAYOUT), global_weights=torch.zeros(LAYOUT.size)
        )
        assert out.flags.tolist() == [True] * attackers + [False] * (12 - attackers)
        assert (out.columns["exceedings"][:attackers] == 1).all()


def test_outputs_on_random_inputs_tell_clients_apart_where_nothing_else_does():
    """Equal output layers: only the network's outputs differ, and then only where the server shows them."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.zeros(12, LAYOUT.size)
    rows[:, LAYOUT.slices["out.bias"]] = 1.0
    rows[:, : LAYOUT.slices["out.weight"].start] = 0.01 * torch.randn(12, 16, generator=generator)
    rows[:4, 0] = 3.0
    asked = []

    def predict(weights):
        asked.append(weights)
        return torch.softmax(weights[0] * torch.arange(5.0) + weights[1:6], 0).repeat(7, 1)

    rule = aggregators.create("deepsight")
    sent, w = Updates(rows, layout=LAYOUT), torch.zeros(LAYOUT.size)
    blind = rule.aggregate(sent, global_weights=w)
    seeing = rule.aggregate(sent, global_weights=w, predict=predict)
    assert len(asked) == 13
    assert not blind.scores.any()
    assert seeing.scores[:4].min() > 0


def test_cosine_distances_do_not_see_lengths():
    rows = torch.tensor([[3.0, 0.0], [0.0, 0.5], [-7.0, 0.0], [2.0, 2.0], [0.0, 0.0]]).double()
    half = 1 - 0.5**0.5
    expected = torch.tensor(
        [
            [0, 1, 2, half, 1],
            [1, 0, 1, half, 1],
            [2, 1, 0, 2 - half, 1],
            [half, half, 2 - half, 0, 1],
            [1, 1, 1, 1, 0],
        ]
    ).double()
    torch.testing.assert_close(_cosine_distances(rows), expected)


def test_division_differences_are_mean_quotients_of_the_outputs():
    outputs = {0.0: [[2.0, 4.0], [1.0, 4.0]], 1.0: [[3.0, 2.0], [2.0, 6.0]], 2.0: [[2.0, 4.0], [1.0, 4.0]]}
    context = Context(
        1, 2, global_weights=torch.zeros(1), predict=lambda weights: torch.tensor(outputs[float(weights[0])])
    )
    found = aggregators.create("deepsight")._division_differences(
        Updates(torch.tensor([[1.0], [2.0]])), context
    )
    expected = torch.tensor([[(3 / 2 + 2 / 1) / 2, (2 / 4 + 6 / 4) / 2], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
