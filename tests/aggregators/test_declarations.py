"""What a rule declares of itself holds: other packages ask these declarations instead of knowing rules by name."""

import inspect
import math

import pytest
import torch
from outcome_parts import split_by_outcome

from wardround import Updates, aggregators, attacks
from wardround.aggregators.base import ScalarRule

NAMES = aggregators.available()
RULES = [name for name in NAMES if not aggregators.registry.get(name).needs_practice_ground]
N, D = 20, 40


def declared(**values):
    """The names of all rules whose declarations have these values."""
    return {
        name
        for name in NAMES
        if all(getattr(aggregators.registry.get(name), key) == value for key, value in values.items())
    }


def aggregate(rule, updates, round=1):
    weights = torch.linspace(-1, 1, D)
    if rule.client_policy.by_outcome and not isinstance(updates.matrix, list):
        updates = split_by_outcome(updates)
    return rule.aggregate(updates, round, global_weights=weights, root_update=weights)


def test_what_is_declared_of_the_rules_of_the_field():
    assert declared(sees="reports") == {"fedavg", "fedmed", "fedprox", "mean"}
    assert declared(sees="scalars") == {"caac", "caac-dir", "caac-mag", "caac-mag+dir", "caac-temp"}
    assert declared(is_robust=False) == {"fedavg", "mean", "fedprox", "fedbn"}
    assert {name for name in NAMES if aggregators.registry.get(name).practice_attacks} == {
        "fedbnp",
        "fedbnp-sharp",
        "rl",
    }


@pytest.mark.parametrize("name", sorted(declared(sees="reports")))
def test_a_rule_that_sees_reports_gives_the_same_weights_whatever_the_rows(name, make_updates):
    one, other = aggregators.create(name), aggregators.create(name)
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t)
        hidden = make_updates(N, D, seed=t, matrix=torch.zeros(N, 1))
        seen, unseen = aggregate(one, updates, t), other.aggregate(hidden, t)
        assert torch.equal(seen.weights, unseen.weights)
        expected = seen.weights @ updates.matrix.double()
        torch.testing.assert_close(seen.delta.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(declared(sees="scalars")))
def test_a_rule_that_sees_scalars_needs_nothing_else_of_the_rows(name, make_updates):
    """Step by step, as where updates are encrypted: the same as in the clear."""
    whole, by_scalars = aggregators.create(name, t_boot=2), aggregators.create(name, t_boot=2)
    assert isinstance(by_scalars, ScalarRule)
    last = None
    for t in range(1, 6):
        updates = make_updates(N, D, seed=t)
        expected = aggregate(whole, updates, t)
        rows = updates.matrix.double()
        norms, cosines = rows.norm(dim=1), torch.ones(N, dtype=torch.float64)
        if last is not None:
            cosines = rows @ last / (norms * last.norm())
        reports = Updates(torch.zeros(N, 1), updates.clients, updates.num_samples, updates.metrics)
        result = by_scalars.weigh(reports, norms, cosines)
        assert len(result.delta) == 0
        last = by_scalars.coefficients(result) @ rows
        by_scalars.remember(last)
        torch.testing.assert_close(result.weights, expected.weights, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(result.scores, expected.scores, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, expected.delta.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(declared(sees="scalars")))
def test_noise_on_the_scalars_goes_to_the_rule_and_nowhere_else(name, make_updates):
    rule, seen = aggregators.create(name), []

    def blur(norms, cosines, round, clients):
        seen.append((round, clients))
        return norms + 1, cosines.mul(0.5)

    rule.blur = blur
    updates = make_updates(N, D)
    out = aggregate(rule, updates, 3)
    assert seen == [(3, updates.clients)]
    torch.testing.assert_close(out.columns["norm"], updates.norms + 1)


@pytest.mark.parametrize("name", RULES)
def test_every_code_in_why_has_its_words(name, make_updates):
    """Rounds with everything that gets a client flagged; a rule without reasons has no codes."""
    rule, codes = aggregators.create(name), set()
    base = make_updates(N, D, seed=0).matrix
    for t in range(1, 12):
        rows = base + 0.3 * make_updates(N, D, seed=t).matrix
        if t > 5:
            rows[0], rows[1], rows[2] = -3 * rows[0], rows[3] + 1e-4, 50 * rows[2]
        out = aggregate(rule, make_updates(N, D, seed=t, matrix=rows), t)
        if "why" in out.columns:
            flagged = out.flags
            codes |= set(out.columns["why"][flagged].int().tolist())
            assert (out.columns["why"][~flagged] == 0).all()
            assert (out.columns["why"][flagged] > 0).all()
    assert codes <= set(rule.reasons)
    assert bool(codes) == bool(rule.reasons)
    assert all(words and words[0].islower() for words in rule.reasons.values())


@pytest.mark.parametrize("name", RULES)
def test_a_profile_table_has_a_line_of_numbers_for_each_client(name, make_updates, tmp_path):
    rule = aggregators.create(name)
    first = rule.profile_table()
    assert first is None or first == {}
    everyone = make_updates(N, D).clients
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t)
        aggregate(rule, updates.select(range(N - 3)), t)
    table = rule.profile_table()
    assert (table is None) == (first is None)
    if table is None:
        assert "profiles" not in rule.state_dict(), "what is remembered of clients can be looked at"
        return
    assert tuple(table) == everyone[: N - 3]
    (columns,) = {tuple(values) for values in table.values()}
    assert len(set(columns)) == len(columns) >= 3
    assert all(math.isfinite(value) for values in table.values() for value in values.values())
    torch.save(rule.state_dict(), tmp_path / "state.pt")
    loaded = aggregators.create(name)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert loaded.profile_table() == table


def test_the_profile_tables_say_what_they_hold(make_updates):
    caac = aggregators.create("caac", beta=0.5)
    rows = torch.eye(4, D) * torch.tensor([1.0, 2.0, 2.0, 3.0])[:, None]
    caac.aggregate(Updates(rows))
    line = caac.profile_table()["client-03"]
    assert list(line) == ["mean norm", "spread", "mean cosine", "reliability", "rounds"]
    assert line["mean norm"] == pytest.approx(2.5)  # from the median, 2, halfway to 3
    assert line["rounds"] == 1
    rule = aggregators.create("caac-guard")
    sent = split_by_outcome(make_updates(N, D))
    sent.parts.rows[0] *= -1
    sent.matrix[0] *= -1
    for t in (1, 2):
        rule.aggregate(sent, t)
    table = rule.profile_table()
    assert list(table["client-01"]) == ["direction", "discrimination", "flagged"]
    assert table["client-01"]["direction"] > 0 == table["client-01"]["flagged"]
    assert table["client-00"]["direction"] < 0 < table["client-00"]["flagged"]


@pytest.mark.parametrize(
    "name", sorted(name for name in NAMES if aggregators.registry.get(name).needs_practice_ground)
)
def test_practice_attacks_are_attacks_that_exist(name):
    declared = aggregators.registry.get(name).practice_attacks
    assert len(declared) >= 5
    for registered, params in declared.values():
        attack = attacks.create(registered, **params)
        assert not attack.knows_defence, "a server practises on rows, not on copies of itself"


@pytest.mark.parametrize("name", NAMES)
def test_declarations_are_of_the_class_or_follow_from_the_parameters(name):
    rule = aggregators.registry.get(name)
    assert rule.sees in ("rows", "scalars", "reports")
    assert isinstance(rule.is_robust, bool)
    assert issubclass(rule, ScalarRule) == (rule.sees == "scalars")
    assert all(isinstance(code, int) and code > 0 for code in rule.reasons)
    assert not inspect.signature(rule.profile_table).parameters.keys() - {"self"}
