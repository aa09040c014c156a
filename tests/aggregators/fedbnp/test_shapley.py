"""Shapley values against the definition over all orders, and what sampling may cost."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.aggregators.fedbnp.shapley import Game, coalition_game, exact_shapley, monte_carlo_shapley
from wardround.errors import ParameterError


def table_game(values, players):
    """A game from a list of 2^N values, coalition as a binary number."""
    table = torch.tensor(values, dtype=torch.float64)
    return Game(players, lambda members: table[(members.long() << torch.arange(players)).sum(1)])


def by_all_orders(values, players):
    """The other definition: the mean gain over all N! orders of joining."""
    totals = [0.0] * players
    for order in itertools.permutations(range(players)):
        coalition = 0
        for player in order:
            totals[player] += values[coalition | 1 << player] - values[coalition]
            coalition |= 1 << player
    return [total / math.factorial(players) for total in totals]


games = st.integers(1, 5).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.floats(-1, 1), min_size=2**n, max_size=2**n))
)


@given(games)
@settings(max_examples=30, deadline=None)
def test_exact_is_the_mean_over_all_orders(game):
    players, values = game
    expected = torch.tensor(by_all_orders(values, players), dtype=torch.float64)
    torch.testing.assert_close(exact_shapley(table_game(values, players)), expected, rtol=1e-9, atol=1e-12)


@given(games, st.integers(1, 6), st.integers(0, 99), st.floats(0, 0.5), st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_sampled_values_always_share_out_the_whole(game, permutations, seed, tolerance, budget):
    players, values = game
    played = table_game(values, players)
    generator = torch.Generator().manual_seed(seed)
    found = monte_carlo_shapley(played, generator, permutations, tolerance, budget)
    assert found.sum().item() == pytest.approx(values[-1] - values[0], abs=1e-9)
    assert played.evaluations <= max(2, budget)


def test_many_orders_come_to_the_exact_values():
    values = torch.rand(2**5, generator=torch.Generator().manual_seed(4)).tolist()
    exact = exact_shapley(table_game(values, 5))
    sampled = monte_carlo_shapley(table_game(values, 5), torch.Generator().manual_seed(0), permutations=4000)
    torch.testing.assert_close(sampled, exact, rtol=0, atol=0.02)


def test_no_coalition_is_evaluated_twice():
    asked = []

    def worth(members):
        asked.extend(tuple(row.tolist()) for row in members)
        return members.double().sum(1).sqrt()

    game = Game(4, worth)
    monte_carlo_shapley(game, torch.Generator().manual_seed(0), permutations=50)
    exact_shapley(game)
    assert len(asked) == len(set(asked)) == game.evaluations == 16


def test_twenty_clients_and_ten_orders_cost_at_most_150_evaluations():
    updates = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    calls = []

    def value(weights):
        calls.append(len(weights))
        return torch.sigmoid(weights[:, 0])

    game = coalition_game(updates, torch.zeros(8), value)
    monte_carlo_shapley(game, torch.Generator().manual_seed(0), 10, budget=150)
    assert sum(calls) == game.evaluations <= 150
    assert len(calls) <= 20, "the orders are walked side by side: coalitions come in batches"


@given(games, st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_walking_all_orders_at_once_gives_what_walking_step_by_step_gives(game, permutations, seed):
    players, values = game
    calls = []

    def worth(members):
        calls.append(len(members))
        return torch.tensor(values, dtype=torch.float64)[(members.long() << torch.arange(players)).sum(1)]

    at_once, stepwise = Game(players, worth), table_game(values, players)
    one = monte_carlo_shapley(at_once, torch.Generator().manual_seed(seed), permutations)
    assert len(calls) <= 3, "nobody, everybody, and all between in one batch"
    other = monte_carlo_shapley(stepwise, torch.Generator().manual_seed(seed), permutations, budget=10_000)
    assert torch.equal(one, other)
    assert at_once.evaluations == stepwise.evaluations


def test_truncation_stops_where_nothing_is_left_to_gain():
    game = Game(20, lambda members: members[:, :3].any(1).double())
    monte_carlo_shapley(game, torch.Generator().manual_seed(0), 10, tolerance=1e-3)
    assert game.evaluations < 100


def test_the_game_of_a_round_is_the_value_of_the_mean():
    matrix, weights = torch.tensor([[1.0, 2.0], [3.0, -4.0], [5.0, 0.0]]), torch.tensor([10.0, 20.0])
    seen = []

    def value(candidates):
        seen.append(candidates.clone())
        return candidates[:, 0]

    game = coalition_game(matrix, weights, value, rows=[2, 0, 1], at_a_time=2)
    game(torch.tensor([[False, False, False], [True, True, False], [True, True, True]]))
    expected = [[10.0, 20.0], [13.0, 21.0], [13.0, 20 - 2 / 3]]
    torch.testing.assert_close(torch.cat(seen), torch.tensor(expected))
    assert max(len(candidates) for candidates in seen) == 1


def test_a_harmful_client_has_the_lowest_value():
    rows = torch.ones(6, 4)
    rows[2] = -3
    game = coalition_game(rows, torch.zeros(4), lambda w: torch.sigmoid(w.sum(1)))
    found = exact_shapley(game)
    assert found.argmin() == 2
    assert found[2] < 0 < found[0]


def test_exact_values_of_many_clients_are_refused():
    with pytest.raises(ParameterError, match="at most 16 clients, got 17"):
        exact_shapley(Game(17, lambda members: members.sum(1)))
