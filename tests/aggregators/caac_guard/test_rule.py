"""caac-guard as a rule: who is flagged and why, what is remembered, what the result can become."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround import Updates, aggregators, attacks
from wardround.aggregators.caac_guard.rule import EXCESS_FACTORS
from wardround.errors import ParameterError
from wardround.updates import Layout

N, D = 20, 600
EXCESS, JUMP, ISOLATION, TWIN, REVERSAL, DRIFT, CONTRADICTION, PROBATION = range(1, 9)


class Population:
    """Honest clients: a common direction, a lasting one of their own, and fresh noise, each at its own norm."""

    def __init__(self, seed=0, clients=N):
        self.generator = torch.Generator().manual_seed(seed)
        self.common = torch.randn(D, generator=self.generator)
        self.own = torch.randn(clients, D, generator=self.generator)
        self.norms = 1 + torch.rand(clients, 1, generator=self.generator)

    def round(self):
        rows = self.common + self.own + 0.5 * torch.randn(self.own.shape, generator=self.generator)
        return self.norms * rows / rows.norm(dim=1, keepdim=True)


def run(rule, rounds, population, craft=None, start=1, byzantine=8):
    """Results of rounds in which the first clients send what `craft` makes of the round."""
    results = []
    for t in range(1, rounds + 1):
        rows = population.round()
        if craft is not None and t >= start:
            rows[:byzantine] = craft(rows, t)
        results.append(rule.aggregate(Updates(rows), t))
    return results


def test_no_attack_no_flags():
    results = run(aggregators.create("caac-guard"), 40, Population())
    flagged = torch.stack([out.flags for out in results]).double().mean().item()
    assert flagged <= 0.02


@pytest.mark.parametrize("start", [1, 6])
@pytest.mark.parametrize("name", ["sign-flip", "noise", "scaling", "alie", "min-max", "ipm"])
def test_blunt_and_colluding_attacks_are_flagged_at_once_and_to_the_end(name, start):
    attack = attacks.create(name)

    def craft(rows, t):
        knowledge = attacks.Knowledge(round=t, honest=rows, own_rows=tuple(range(8)), start=start)
        return attack.craft(rows[:8], knowledge)

    results = run(aggregators.create("caac-guard"), 12, Population(), craft, start)
    struck = torch.stack([out.flags for out in results[start - 1 :]])
    assert struck[:, :8].double().mean() >= 0.95
    assert struck[:, 8:].double().mean() <= 0.05
    assert all(out.weights[:8][out.flags[:8]].sum() == 0 for out in results)


def test_what_is_flagged_is_not_learnt():
    """Ten rounds of an attack leave the profile as it was: unlike caac, the guard cannot be taught."""
    rule, population = aggregators.create("caac-guard"), Population()
    run(rule, 5, population)
    before = rule.state_dict()
    results = run(rule, 10, population, lambda rows, t: -10 * rows[:8])
    after = rule.state_dict()
    assert all(out.flags[:8].all() for out in results)
    assert torch.equal(before["direction"][:8], after["direction"][:8])
    assert not torch.equal(before["direction"][8:], after["direction"][8:])


@pytest.mark.parametrize(
    ("craft", "why"),
    [
        (lambda rows, t: 20 * rows[:1], JUMP),
        (lambda rows, t: -rows[:1], REVERSAL),
        (lambda rows, t: torch.randn(1, D, generator=torch.Generator().manual_seed(t)), ISOLATION),
    ],
)
def test_the_column_why_names_the_test(craft, why):
    out = run(aggregators.create("caac-guard"), 8, Population(), craft, start=8, byzantine=1)[-1]
    assert out.columns["why"].int().tolist() == [why] + [0] * (N - 1)


def test_a_newcomer_is_judged_by_its_peers():
    out = run(aggregators.create("caac-guard"), 1, Population(), lambda rows, t: 20 * rows[:1], byzantine=1)[
        0
    ]
    assert out.columns["why"].int().tolist() == [EXCESS] + [0] * (N - 1)


def test_of_twins_the_one_that_fits_its_own_past_is_spared():
    """Mimic: eight copy client 8. Only client 8 looks like client 8 always did."""
    out = run(aggregators.create("caac-guard"), 8, Population(), lambda rows, t: rows[8].repeat(8, 1), 8)[-1]
    assert out.flags.tolist() == [True] * 8 + [False] * 12
    assert (out.columns["why"][:8] == TWIN).all()


def test_slow_drift_in_step_is_found():
    rule, population, direction = aggregators.create("caac-guard"), Population(), -Population().common

    def craft(rows, t):
        a = min(1.0, (t - 6) / 20)
        return (1 - a) * rows[:8] + a * rows[:8].norm(dim=1, keepdim=True) * direction / direction.norm()

    results = run(rule, 26, population, craft, start=6)
    assert results[-1].flags[:8].all()
    assert not results[-1].flags[8:].any()


def test_falling_silent_in_step_is_found_long_before_the_rows_have_turned():
    rule, population = aggregators.create("caac-guard"), Population()

    def craft(rows, t):
        return rows[:8] * (1 - 0.05 * (t - 6))  # a tenth of the norm after eighteen rounds, never reversed

    results = run(rule, 14, population, craft, start=6)
    assert results[-1].flags[:8].all()
    assert (results[-1].columns["why"][:8] == DRIFT).all()
    assert not torch.stack([out.flags for out in results])[:, 8:].any()


class Kinds:
    """Honest clients of a network with one output: most see one class only, and pull its bias to their side."""

    layout = Layout(("hidden.weight", "output.weight", "output.bias"), ((40, 14), (1, 39), (1,)))

    def __init__(self, seed=0, negative=11):
        self.generator = torch.Generator().manual_seed(seed)
        self.base, self.signal = torch.randn(2, D, generator=self.generator)
        side = torch.tensor([-1.0] * negative + [1.0] * (N - negative))[:, None]
        self.rows = 1.0 * side * self.base + 0.4 * self.signal
        self.rows[:, -1] = 3 * side[:, 0]
        self.norms = 1 + torch.rand(N, 1, generator=self.generator)

    def round(self, reversed_rows=()):
        rows = self.rows + 0.3 * torch.randn(N, D, generator=self.generator)
        rows[list(reversed_rows)] *= -1
        return Updates(self.norms * rows / rows.norm(dim=1, keepdim=True), layout=self.layout)


def test_hospitals_with_one_class_each_are_left_alone():
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    assert not any(rule.aggregate(kinds.round(), t).flags.any() for t in range(1, 11))


def test_a_few_who_reverse_their_rows_from_the_first_round_on_are_named():
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    for t in range(1, 11):
        out = rule.aggregate(kinds.round([0, 1, 15]), t)
        assert out.columns["why"].nonzero().flatten().tolist() == [0, 1, 15]
    assert (out.columns["why"][[0, 1, 15]] == CONTRADICTION).all()


@pytest.mark.parametrize("reversed_rows", [[0, 1, 2, 3, 15, 16, 17], [0, 1, 2, 3, 4, 15, 16, 17, 18]])
def test_contested_updates_get_the_coordinate_wise_median_and_nobody_is_named(reversed_rows):
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    for t in range(1, 6):
        updates = kinds.round(reversed_rows)
        out = rule.aggregate(updates, t)
        clipped = updates.matrix * (rule.clip / updates.norms).clamp(max=1)[:, None].float()
        assert not out.flags.any()
        torch.testing.assert_close(
            out.delta, clipped.double().quantile(0.5, dim=0).float(), rtol=1e-4, atol=1e-6
        )
    assert rule.contested == 1.0
    assert (out.columns["contested"] == 1).all()


def test_how_often_updates_were_contested_forgets_after_five_rounds():
    rule, kinds = aggregators.create("caac-guard", contradiction_rounds=10), Kinds()
    shares = []
    for t in range(1, 9):
        updates = kinds.round([0, 1, 2, 3, 4, 15, 16, 17, 18] if t > 5 else [])
        if t > 5:  # by clients without a past, or they would be reversals
            updates = replace(updates, clients=[f"late-{i}" for i in range(N)])
        shares.append(rule.aggregate(updates, t).columns["contested"][0].item())
    assert shares == pytest.approx([0.0] * 5 + [0.2, 0.36, 0.488])  # not 1/6, 2/7, 3/8


def test_up_to_thirty_percent_who_contradict_are_named_and_the_rest_are_averaged():
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    out = rule.aggregate(kinds.round([0, 1, 2, 3, 15, 16]), 1)
    assert out.flags.nonzero().flatten().tolist() == [0, 1, 2, 3, 15, 16]
    assert rule.contested == 0.0


def test_of_contested_updates_root_data_weighs_directions_alone():
    rooted, kinds = aggregators.create("caac-guard", root=True), Kinds()
    root, updates = kinds.signal, kinds.round([0, 1, 2, 3, 4, 15, 16, 17, 18])
    out = rooted.aggregate(updates, 1, root_update=root)
    rows, clip = updates.matrix, updates.norms.quantile(0.5)
    trust = (rows @ root / (rows.norm(dim=1) * root.norm())).clamp(min=0)
    expected = (root + (trust * clip.float() / rows.norm(dim=1)) @ rows) / (1 + trust.sum())
    torch.testing.assert_close(out.delta, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("contradiction_rounds", "layout"), [(0, Kinds.layout), (3, None)])
def test_without_such_rounds_or_an_output_bias_nobody_contradicts(contradiction_rounds, layout):
    rule, kinds = aggregators.create("caac-guard", contradiction_rounds=contradiction_rounds), Kinds()
    for t in range(1, 5):
        rows = kinds.round([0, 1, 15]).matrix
        assert not rule.aggregate(Updates(rows, layout=layout), t).flags.any()


def test_contradictions_are_looked_for_in_the_first_rounds_only():
    """Once the model has learnt, honest clients contradict each other: nobody is named for it then."""
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    for t in (1, 2, 3):
        rule.aggregate(kinds.round(), t)
    state = rule.state_dict()
    out = rule.aggregate(kinds.round([4]), 4)
    assert (out.columns["contradiction"] == 0).all()
    assert (state["compared_rounds"], rule.compared_rounds) == (3, 3)


def test_a_state_that_was_saved_under_the_former_names_is_read():
    rule, kinds = aggregators.create("caac-guard"), Kinds()
    for t in (1, 2):
        rule.aggregate(kinds.round([0, 1, 2, 3, 15, 16, 17]), t)
    state = rule.state_dict()
    former = {**state, "heard": state.pop("compared_rounds"), "division": state.pop("contested")}
    del former["compared_rounds"], former["contested"]
    resumed = aggregators.create("caac-guard")
    resumed.load_state_dict(former)
    assert (resumed.compared_rounds, resumed.contested) == (2, 1.0)
    updates = kinds.round([0, 1, 2, 3, 15, 16, 17])
    assert torch.equal(resumed.aggregate(updates, 3).delta, rule.aggregate(updates, 3).delta)


def test_the_former_name_of_a_parameter_works_with_a_warning_that_gives_the_new_one():
    with pytest.warns(FutureWarning, match="'hearings' is now called 'contradiction_rounds'"):
        rule = aggregators.create("caac-guard", hearings=1)
    assert rule.params.contradiction_rounds == 1
    assert "hearings" not in rule.params.model_dump()
    with pytest.raises(ParameterError, match="'hearings' is the former name of 'contradiction_rounds'"):
        aggregators.create("caac-guard", hearings=1, contradiction_rounds=1)


def test_after_an_attack_a_client_is_on_probation_and_then_free():
    rule, population = aggregators.create("caac-guard"), Population()
    run(rule, 5, population)
    run(rule, 6, population, lambda rows, t: -10 * rows[:8])
    after = run(rule, 12, population)
    assert after[0].flags[:8].all()
    assert (after[0].columns["jump"][:8] < 1).all()  # the row itself is honest again
    assert not after[-1].flags.any()


def test_malformed_rows_are_offences():
    rule, population = aggregators.create("caac-guard"), Population()
    run(rule, 3, population)
    for t in range(5):
        rows = population.round()
        rows[0, 0] = torch.nan
        rule.aggregate(Updates(rows), 4 + t)
    assert rule.aggregate(Updates(population.round()), 9).columns["why"][0] == PROBATION


def test_while_nobody_is_flagged_the_result_is_the_mean_by_sample_counts():
    rows = Population().round()
    samples = torch.tensor([5000.0, 300.0] + [100.0] * (N - 2))
    out = aggregators.create("caac-guard").aggregate(Updates(rows, num_samples=samples))
    assert not out.flags.any()
    weights = samples.clamp(max=1000) / samples.clamp(max=1000).sum()
    torch.testing.assert_close(out.delta, weights @ rows, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.weights, weights.double(), rtol=1e-6, atol=0)


def test_nobody_is_longer_than_four_times_what_its_size_explains():
    """A past vouches for a long row; it is clipped all the same."""
    rule, population = aggregators.create("caac-guard"), Population()
    for t in range(1, 61):
        rows = population.round()
        rows[0] *= 1.04**t  # slowly enough to be normal for this client
        out = rule.aggregate(Updates(rows), t)
    assert not out.flags.any()
    usual = rows.norm(dim=1).log().quantile(0.5).exp()
    assert out.columns["clip_scale"][0].item() == pytest.approx(
        (EXCESS_FACTORS[1] * usual / rows[0].norm()).item(), rel=1e-5
    )


def test_when_someone_is_flagged_the_others_are_clipped_to_the_median_and_counts_count_less():
    rows = Population().round()
    rows[-1] *= 50
    samples = torch.tensor([1000.0] + [100.0] * (N - 1))
    out = aggregators.create("caac-guard", sample_cap=2).aggregate(Updates(rows, num_samples=samples))
    assert out.flags.tolist() == [False] * (N - 1) + [True]
    weights = torch.tensor([200.0] + [100.0] * (N - 2) + [0.0]) / (200 + 100 * (N - 2))
    clip = min(rows.norm(dim=1).quantile(0.5), rows[:-1].norm(dim=1).quantile(0.5))
    expected = (weights * (clip / rows.norm(dim=1)).clamp(max=1)) @ rows
    torch.testing.assert_close(out.delta, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.weights, weights.double(), rtol=1e-6, atol=0)


def test_the_clipping_norm_falls_slowly_when_most_have_converged():
    rule, population = aggregators.create("caac-guard"), Population()
    run(rule, 1, population)
    first = rule.clip
    rule.aggregate(Updates(population.round() * 1e-3), 2)
    assert rule.clip == pytest.approx(0.98 * first)


def test_with_root_data_directions_are_trusted_as_far_as_they_agree_with_it():
    rows = Population().round()
    root = rows[5:].mean(0)
    rule = aggregators.create("caac-guard", root=True)
    with pytest.raises(ParameterError, match="root_update"):
        rule.aggregate(Updates(rows))
    out = rule.aggregate(Updates(rows), root_update=root)
    trust = (rows @ root / (rows.norm(dim=1) * root.norm())).clamp(min=0)
    expected = (root + trust @ rows) / (1 + trust.sum())
    torch.testing.assert_close(out.delta, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ParameterError, match="entries"):
        rule.aggregate(Updates(rows), root_update=root[:-1])
    assert rule.aggregate(Updates(rows), root_update=root * torch.nan).skipped


def test_with_root_data_too_sample_counts_count():
    rows = Population().round()
    root, samples = rows[5:].mean(0), torch.tensor([200.0] + [100.0] * (N - 1))
    rule = aggregators.create("caac-guard", root=True)
    out = rule.aggregate(Updates(rows, num_samples=samples), root_update=root)
    trust = (rows @ root / (rows.norm(dim=1) * root.norm())).clamp(min=0) * samples / samples.mean()
    torch.testing.assert_close(out.delta, (root + trust @ rows) / (1 + trust.sum()), rtol=1e-5, atol=1e-6)


def test_a_flipped_majority_cannot_outvote_the_root():
    rows = Population().round()
    rows[:12] *= -1
    root = rows[12:].mean(0)
    out = aggregators.create("caac-guard", root=True).aggregate(Updates(rows), root_update=root)
    assert torch.nn.functional.cosine_similarity(out.delta, root, 0) > 0.9


def test_asking_a_copy_teaches_the_rule_nothing():
    rule, population = aggregators.create("caac-guard"), Population()
    run(rule, 4, population)
    before = rule.state_dict()
    copy.deepcopy(rule).aggregate(Updates(population.round()), 5)
    assert torch.equal(before["scalars"], rule.state_dict()["scalars"])


@pytest.mark.parametrize("root", [False, True])
def test_where_everyone_is_suspicious_nobody_is_flagged(root):
    """All clients reverse their rows at once: there is nobody left to compare with."""
    rule, population = aggregators.create("caac-guard", root=root), Population()
    extra = {"root_update": -population.common} if root else {}
    for t in range(1, 6):
        rule.aggregate(Updates(population.round()), t, **extra)
    for t in range(6, 10):
        rows = -population.round()
        out = rule.aggregate(Updates(rows), t, **extra)
        if t < 8:  # after that, their own past has turned with them
            assert (out.columns["reversal"] > 1).all()
        assert not out.flags.any()
        assert (out.columns["why"] == 0).all()
        assert out.skipped is None
        if root:
            assert out.weights.sum().item() == pytest.approx(1)
            assert torch.nn.functional.cosine_similarity(out.delta, rows.mean(0), 0) > 0.9
        else:
            torch.testing.assert_close(out.delta, rows.mean(0), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(out.weights, torch.full((N,), 1 / N, dtype=torch.float64))
        assert rule.profile_table()["client-00"]["accepted rounds"] == t, "and all are learnt from"


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("flagged", [False, True])
def test_where_nobody_has_a_sample_all_count_the_same(root, flagged):
    rows = Population().round()
    if flagged:
        rows[-1] *= 50
    extra = {"root_update": rows[:5].mean(0)} if root else {}
    none, one = (
        aggregators.create("caac-guard", root=root).aggregate(
            Updates(rows, num_samples=torch.full((N,), count)), **extra
        )
        for count in (0.0, 1.0)
    )
    assert none.flags.tolist() == [False] * (N - 1) + [flagged]
    assert torch.equal(none.delta, one.delta)
    assert torch.equal(none.weights, one.weights)


def test_clients_come_and_go():
    rule, population = aggregators.create("caac-guard"), Population()
    for t in range(1, 12):
        rows, chosen = population.round(), [i for i in range(N) if (i + t) % 3]
        out = rule.aggregate(Updates(rows[chosen], [f"c{i}" for i in chosen]), t)
        assert not out.flags.any()
    assert len(rule.state_dict()["clients"]) == N


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000), attackers=st.integers(0, 9), magnitude=st.sampled_from([0.01, 1.0, 30.0, 1e9])
)
def test_no_minority_pulls_farther_than_the_longest_honest_row(seed, attackers, magnitude):
    rows = Population(seed).round()
    rows[:attackers] = magnitude * torch.randn(D, generator=torch.Generator().manual_seed(seed))
    out = aggregators.create("caac-guard").aggregate(Updates(rows))
    assert out.delta.norm() <= rows[attackers:].norm(dim=1).max() * (1 + 1e-5)
    assert (out.weights[out.flags] == 0).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), unit=st.sampled_from([1e-6, 1e-2, 1e3]))
def test_the_unit_of_the_updates_does_not_matter(seed, unit):
    one, other = aggregators.create("caac-guard"), aggregators.create("caac-guard")
    population = Population(seed)
    for t in (1, 2, 3, 4, 5):
        rows = population.round().double()
        rows[:4] *= -10 if t > 3 else 1
        a, b = one.aggregate(Updates(rows), t), other.aggregate(Updates(unit * rows), t)
        assert torch.equal(a.flags, b.flags)
        torch.testing.assert_close(unit * a.delta, b.delta, rtol=1e-6, atol=1e-9 * unit)
