"""caac-guard as a rule: who is flagged and why, what passes again, and what the result can become."""

import copy
from dataclasses import replace

import pytest
import torch
from fast_cases import slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.aggregators.caac_guard.population import FEATURES, LAYOUT, N, Population, run

from wardround import Updates, aggregators
from wardround.aggregators.caac_guard.evidence import Sides
from wardround.errors import ParameterError
from wardround.updates import Parts

IMPOSSIBLE, DIRECTION, DISCRIMINATION = 1, 2, 3


def guard(**params):
    return aggregators.create("caac-guard", **params)


def reverse(parts):
    return -parts


def keep_the_bias(parts):
    """Reversed in all but what gives a reversal away at once."""
    crafted = -parts
    crafted[..., -1] = parts[..., -1]
    return crafted


def exchange_labels(parts):
    """What patients say of the outcomes, the other way round: each outcome's part is made of the other's patients."""
    crafted = parts.clone()
    per_patient = parts / parts[..., -1:]
    crafted[:, 0] = per_patient[:, 1] * parts[:, 0, -1:]
    crafted[:, 1] = per_patient[:, 0] * parts[:, 1, -1:]
    return crafted


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_without_attack_nobody_is_flagged_and_the_result_is_fedavg_to_the_last_bit(seed, positive):
    population = Population(seed, positive=positive)
    rule, fedavg = guard(), aggregators.create("fedavg")
    for t in range(1, 15):
        updates = population.updates(population.round())
        out = rule.aggregate(updates, t)
        assert not out.flags.any()
        assert torch.equal(out.delta, fedavg.aggregate(replace(updates, parts=None), t).delta)


@pytest.mark.parametrize("start", slow_but([6], [1, 6]))
@pytest.mark.parametrize(
    ("craft", "why"),
    [(reverse, IMPOSSIBLE), (keep_the_bias, DIRECTION), (exchange_labels, DISCRIMINATION)],
)
def test_attackers_are_flagged_for_what_they_do_and_nobody_else_is(craft, why, start):
    results = run(guard(), 30, Population(positive=True), craft, start)
    last = results[-1]
    assert last.flags.tolist() == [True] * 6 + [False] * (N - 6)
    assert (last.columns["why"][:6] == why).all()
    assert not torch.stack([out.flags[6:] for out in results]).any()
    assert (last.weights[:6] == 0).all()


@pytest.mark.parametrize(
    ("craft", "test"),
    [(reverse, "impossible"), (keep_the_bias, "direction"), (exchange_labels, "discrimination")],
)
def test_without_a_test_nobody_is_flagged_for_it(craft, test):
    code = {"impossible": IMPOSSIBLE, "direction": DIRECTION, "discrimination": DISCRIMINATION}[test]
    results = run(guard(without=[test]), 10, Population(positive=True), craft)
    assert not any((out.columns["why"] == code).any() for out in results)


@pytest.mark.parametrize("accusing", ["by patients", "alike"])
def test_who_is_seen_by_either_way_of_counting_is_flagged(monkeypatch, accusing):
    def compare(measure, weights, holders, *others):
        way = "alike" if bool((weights <= 1).all()) else "by patients"
        values = torch.ones(len(weights), dtype=torch.float64)
        values[0] = -1.0 if way == accusing else 1.0
        return Sides(values, torch.full_like(values, 200.0), 1.0, True)

    monkeypatch.setattr("wardround.aggregators.caac_guard.rule.compare_outcomes", compare)
    last = run(guard(), 3, Population(positive=True))[-1]
    assert last.flags.tolist() == [True] + [False] * (N - 1)


@pytest.mark.parametrize("seed", range(3))
def test_one_of_four_hospitals_with_exchanged_labels_is_flagged_alone(seed):
    last = run(guard(), 10, Population(seed, clients=4, positive=True), exchange_labels, byzantine=1)[-1]
    assert last.flags.tolist() == [True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(("exchanged", "found"), [(9, True), (11, False)])
def test_up_to_half_of_the_clients_are_left_out_for_exchanged_labels(exchanged, found):
    population = Population(positive=True)
    population.counts[:] = 200.0
    last = run(guard(), 20, population, exchange_labels, byzantine=exchanged)[-1]
    assert bool(last.flags[:exchanged].all()) == found


@pytest.mark.slow
@pytest.mark.parametrize("craft", [reverse, keep_the_bias, exchange_labels])
def test_no_verdict_is_for_ever(craft):
    results = run(guard(), 80, Population(positive=True), craft, end=20)
    assert results[18].flags[:6].all()
    assert not results[-1].flags.any()


def test_liars_about_a_rare_outcome_do_not_outvote_those_who_have_it():
    """Five hospitals have the rare outcome and eight claim it; they behave on the common one, and keep the bias."""
    population = Population(positive=True)
    population.counts[13:, 1] = 0
    honest = torch.arange(8, 13)

    def parts_of_a_round():
        parts = population.round()
        parts[13:, 1] = 0
        parts[:8, 1] = keep_the_bias(parts[:8, 1])
        return parts

    rule = guard()
    for t in range(1, 12):
        out = rule.aggregate(population.updates(parts_of_a_round()), t)
    assert out.flags.tolist() == [True] * 8 + [False] * (N - 8)
    assert (out.weights[honest] > 0).all()


def test_who_counts_for_how_many_patients_does_not_depend_on_what_a_client_claims():
    population = Population()
    population.counts[:6] *= 1e6
    results = run(guard(), 10, population, keep_the_bias)
    assert results[-1].flags.tolist() == [True] * 6 + [False] * (N - 6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    clients=st.integers(1, 12),
    outcomes=st.integers(1, 4),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
    rounds=st.integers(1, 4),
)
def test_no_more_than_the_stated_shares_are_ever_left_out(seed, clients, outcomes, scale, rounds):
    """Whatever is sent: by heads, by patients, and by the patients of every outcome."""
    rng = torch.Generator().manual_seed(seed)
    rule = guard()
    for t in range(1, rounds + 1):
        rows = scale * torch.randn(clients, outcomes, 30, generator=rng)
        counts = torch.randint(1, 200, (clients, outcomes), generator=rng).double()
        absent = torch.rand(clients, outcomes, generator=rng) < 0.3
        rows[absent], counts[absent] = 0, 0
        updates = Updates(rows.sum(1), num_samples=counts.sum(1).clamp_min(1), parts=Parts(rows, counts))
        out = rule.aggregate(updates, t)
        if out.skipped is not None:
            continue
        assert torch.isfinite(out.delta).all()
        kept = [i for i, client in enumerate(updates.clients) if client not in out.dropped]
        flags, counts = out.flags[kept], counts[kept]
        assert int(flags.sum()) <= 0.5 * len(kept)
        held = counts.clone()
        for outcome in range(outcomes):
            some = held[held[:, outcome] >= 5, outcome]
            limit = some.quantile(0.5) if len(some) else torch.tensor(0.0)
            held[:, outcome] = held[:, outcome].clamp(max=float(limit)) * (held[:, outcome] >= 5)
        assert float(held[flags].sum()) <= 0.5 * float(held.sum()) + 1e-9
        assert (held[flags].sum(0) <= 0.75 * held.sum(0) + 1e-9).all()


@pytest.mark.slow
@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_an_honest_client_more_takes_no_honest_client_its_weight(seed):
    population = Population(seed, clients=N)
    parts = population.round()
    parts[:5] = keep_the_bias(parts[:5])
    updates = population.updates(parts)
    fewer = updates.select(range(N - 1))
    with_all, without = guard().aggregate(updates), guard().aggregate(fewer)
    honest = torch.arange(5, N - 1)
    assert (without.weights[honest] > 0).all()
    assert (with_all.weights[honest] > 0).all()


def test_a_majority_of_suspects_is_not_left_out_but_averaged_robustly():
    population = Population()
    parts = population.round()
    parts[:12] = reverse(parts[:12])
    out = guard().aggregate(population.updates(parts))
    assert not out.flags.any()
    assert (out.columns["contested"] == 1).all()
    assert out.warning.startswith("contested")
    assert (out.weights > 0).all()
    assert float(out.weights.sum()) == pytest.approx(1)


def test_in_a_contested_round_no_suspect_has_more_influence_than_the_median_client():
    population = Population()
    parts = population.round()
    parts[:12] = reverse(parts[:12])
    parts[0] *= 1000
    population.counts[0] *= 1000
    updates = population.updates(parts)
    out = guard().aggregate(updates)
    assert (out.columns["contested"] == 1).all()
    assert float(out.weights[0]) == float(out.weights[:12].max()) < 2 / N
    assert float(out.columns["clip_scale"][0]) < 1 / 100


def test_suspects_beyond_the_stated_share_lose_just_that_share_together():
    """Ten of the twelve that claim the rare outcome reverse it: more than three quarters of it may not be taken out."""
    population = Population(positive=True)
    population.counts[:] = 200.0
    population.counts[12:, 1] = 0

    def parts_of_a_round():
        parts = population.round()
        parts[12:, 1] = 0
        parts[:10, 1] = keep_the_bias(parts[:10, 1])
        return parts

    rule = guard(most_left_out=0.9)
    for t in range(1, 8):
        out = rule.aggregate(population.updates(parts_of_a_round()), t)
    assert not out.flags.any()
    assert (out.columns["contested"] == 1).all()
    kept = out.weights[:10] / out.weights[10]
    assert kept.tolist() == pytest.approx([1 - 0.75 * 12 / 10] * 10)


def test_without_the_limit_of_length_a_row_stays_as_long_as_it_is():
    population = Population()
    parts = population.round()
    parts[0] *= 1e4
    population.counts[0] = 200.0
    updates = population.updates(parts)
    assert float(guard().aggregate(updates).columns["clip_scale"][0]) < 1
    assert float(guard(without=["length"]).aggregate(updates).columns["clip_scale"][0]) == 1


def test_a_row_that_is_far_too_long_is_brought_back_to_the_usual_norm():
    population = Population()
    parts = population.round()
    parts[0] *= 1000
    updates = population.updates(parts)
    out = guard().aggregate(updates)
    assert not out.flags[0]  # it points where the others do
    assert out.columns["clip_scale"][0] < 1 / 100
    assert (out.columns["clip_scale"][1:] == 1).all()
    assert out.delta.norm() < 2 * updates.norms[1:].max()


def test_a_client_that_no_test_can_judge_is_no_longer_than_those_who_passed():
    """It does not say how many patients of each outcome it has, so nothing else can be said of its update."""
    population = Population()
    counts = population.counts.clone()
    counts[0] = torch.tensor([torch.nan, population.counts[0].sum()])
    parts = population.round()
    parts[0, 1], parts[0, 0] = 50 * parts[0].sum(0), 0.0
    out = guard().aggregate(population.updates(parts, counts))
    assert not out.flags.any()
    assert out.columns["clip_scale"][0] < 1 / 10
    assert (out.columns["clip_scale"][1:] == 1).all()


def test_a_part_beyond_the_reach_of_training_is_impossible():
    """Scaled rows point where honest ones do; what a bias can move in so many steps is known."""
    population = Population()
    parts = population.round()
    reach = 1.1 * parts[..., -1].abs().double()
    parts[0] *= 10
    updates = population.updates(parts)
    within = replace(updates, parts=replace(updates.parts, reach=reach))
    out = guard().aggregate(within)
    assert out.flags.tolist() == [True] + [False] * (N - 1)
    assert out.columns["why"][0] == IMPOSSIBLE
    assert not guard().aggregate(updates).flags.any()  # nobody knows the reach


def test_a_part_much_too_long_for_its_step_of_the_bias_is_brought_back():
    population = Population()
    parts = population.round()
    parts[0, :, :-1] *= 50
    out = guard().aggregate(population.updates(parts))
    assert out.columns["clip_scale"][0] == pytest.approx(1 / 50, rel=0.5)
    assert (out.columns["clip_scale"][1:] == 1).all()


def test_hospitals_with_a_rare_outcome_keep_their_long_updates():
    """Where nine in ten patients live, who has deaths sends an update many times as long."""
    population = Population()
    parts = population.round()
    parts[:4] *= 30
    updates = population.updates(parts)
    out = guard().aggregate(updates)
    assert torch.equal(out.delta, aggregators.create("fedavg").aggregate(replace(updates, parts=None)).delta)


def test_a_saturated_model_is_no_sign_of_an_attack():
    """Who learns nothing more from an outcome sends a part whose bias stays as it is."""
    population = Population()
    parts = population.round()
    parts[3, 0] = 0
    parts[4, 0, -1] = 0
    out = guard().aggregate(population.updates(parts))
    assert not out.flags.any()


class TestUntoldOutcomes:
    """A hospital with a few patients of an outcome does not tell how many; its one part holds them, too."""

    def updates(self, population, craft=None):
        parts = population.round()
        counts = population.counts.clone()
        if craft is not None:
            parts[:4] = craft(parts[:4])
        parts[:8, 0] += 3 * parts[:8, 1]  # more weight than the many patients of the common outcome
        parts[:8, 1] = 0
        counts[:8, 1] = torch.nan
        return population.updates(parts, counts)

    def test_honest_ones_are_left_alone(self):
        population, rule = Population(), guard()
        for t in range(1, 20):
            assert not rule.aggregate(self.updates(population), t).flags.any()

    def test_reversed_ones_are_found(self):
        population, rule = Population(), guard()
        for t in range(1, 20):
            out = rule.aggregate(self.updates(population, reverse), t)
        assert out.flags.tolist() == [True] * 4 + [False] * (N - 4)


def test_whole_updates_are_not_judged():
    """Nobody can say whether two groups that point against each other are liars or hospitals with other patients."""
    rows = 1 + 0.5 * torch.randn(N, 300, generator=torch.Generator().manual_seed(0))
    rows[:8] *= -1
    rule, sent = guard(), Updates(rows)
    for t in range(1, 20):
        out = rule.aggregate(sent, t)
        assert not out.flags.any()
        assert torch.equal(out.delta, aggregators.create("fedavg").aggregate(sent, t).delta)
    rows[0] *= 1000
    out = rule.aggregate(Updates(rows), 20)
    assert out.delta.norm() < 2 * rows[1:].norm(dim=1).max()


def test_it_goes_on_from_a_saved_state_as_if_nothing_had_happened():
    one, population = guard(), Population()
    run(one, 7, population, keep_the_bias)
    other = guard()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    updates = population.updates(population.round())
    first, second = one.aggregate(updates, 8), other.aggregate(updates, 8)
    assert torch.equal(first.delta, second.delta)
    for column, values in first.columns.items():
        assert torch.equal(values, second.columns[column])


def test_without_an_output_layer_directions_still_decide():
    population = Population()
    parts = population.round()
    parts[:6] = reverse(parts[:6])
    out = guard().aggregate(replace(population.updates(parts), layout=None))
    assert out.flags.tolist() == [True] * 6 + [False] * (N - 6)
    assert (out.columns["why"][:6] == DIRECTION).all()


@pytest.mark.parametrize(
    "bad", [{"memory": 1.0}, {"min_patients": 0}, {"most_left_out": 1.0}, {"root": True}]
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ParameterError):
        guard(**bad)


def test_columns_are_named_for_the_report():
    out = guard().aggregate(Population().updates(Population().round()))
    assert set(out.columns) == {"norm", "direction", "discrimination", "contested", "clip_scale", "why"}
    assert LAYOUT.size == FEATURES + 1
