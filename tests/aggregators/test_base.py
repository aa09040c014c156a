"""A rule that does not keep its contract is named, with its file and what was expected."""

import re

import pytest
import torch

from wardround import Aggregation, Updates, aggregators
from wardround.aggregators.base import Aggregator, ScalarRule, registry
from wardround.errors import ContractError, TooFewClients

N, D = 4, 3


@pytest.fixture
def wrong_rule(registries):
    """Make a registered rule that returns whatever is given."""

    def make(result):
        @registry.register("wrong")
        class Wrong(Aggregator):
            def combine(self, updates, context):
                return result

        return Wrong()

    return make


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, "combine returned NoneType, expected an Aggregation(delta, …)"),
        (torch.zeros(D), "combine returned Tensor, expected an Aggregation(delta, …)"),
        (
            Aggregation([0.0] * D),
            "combine returned delta of type list, expected a tensor of 3 values, one per parameter",
        ),
        (
            Aggregation(torch.zeros(N, D)),
            "combine returned delta of shape (4, 3), expected a tensor of 3 values, one per parameter",
        ),
        (
            Aggregation(torch.zeros(D, dtype=torch.long)),
            "combine returned delta of torch.int64, expected floating-point numbers",
        ),
        (
            Aggregation(torch.zeros(D), weights=torch.ones(D)),
            "combine returned weights of shape (3,), expected a tensor of 4 values, one per client",
        ),
        (
            Aggregation(torch.zeros(D), scores=torch.zeros(N, 1)),
            "combine returned scores of shape (4, 1), expected a tensor of 4 values, one per client",
        ),
        (
            Aggregation(torch.zeros(D), flags=[True] * N),
            "combine returned flags of type list, expected a tensor of 4 values, one per client",
        ),
        (
            Aggregation(torch.zeros(D), columns={"norm": torch.tensor(1.0)}),
            "combine returned columns['norm'] of shape (), expected a tensor of 4 values, one per client",
        ),
    ],
)
def test_a_wrong_result_is_explained_on_one_line(wrong_rule, result, expected):
    with pytest.raises(ContractError) as error:
        wrong_rule(result).aggregate(Updates(torch.ones(N, D)))
    message = str(error.value)
    assert re.fullmatch(r"aggregator 'wrong' \(.*test_base\.py, line \d+\): .*", message)
    assert message.endswith(expected)


def test_what_is_wrong_is_said_of_the_rows_that_passed(wrong_rule):
    """One row is dropped: a result for all clients is one too long."""
    rows = torch.ones(N, D)
    rows[0, 0] = torch.nan
    with pytest.raises(ContractError, match=r"weights of shape \(4,\), expected a tensor of 3 values"):
        wrong_rule(Aggregation(torch.zeros(D), weights=torch.ones(N))).aggregate(Updates(rows))


def test_a_right_result_passes(wrong_rule):
    result = Aggregation(
        torch.zeros(D), torch.ones(N), torch.ones(N), torch.ones(N).bool(), {"a": torch.ones(N)}
    )
    assert wrong_rule(result).aggregate(Updates(torch.ones(N, D))).skipped is None


def test_a_rule_without_its_methods_is_refused_when_it_is_registered():
    with pytest.raises(ContractError) as error:

        @registry.register("unfinished")
        class Unfinished(Aggregator):
            pass

    assert re.fullmatch(
        r"aggregator 'unfinished' \(.*test_base\.py, line \d+\): Unfinished must define "
        r"combine\(updates, context\)",
        str(error.value),
    )
    assert "unfinished" not in registry.available()
    with pytest.raises(
        ContractError, match=r"define coefficients\(result\), weigh\(reports, norms, cosines\)"
    ):

        @registry.register("half")
        class Half(ScalarRule):
            pass


def test_an_abstract_rule_cannot_be_built():
    with pytest.raises(TypeError, match="abstract"):
        Aggregator()


def test_as_many_clients_as_a_rule_needs_are_enough():
    """Krum needs 2f + 3: five with f = 1. Whoever needs nothing needs one client."""
    krum = aggregators.create("krum", f=1)
    krum.check(5)
    with pytest.raises(TooFewClients, match=r"N ≥ 2f\+3 = 5 with f=1, got N=4"):
        krum.check(4)
    mean = aggregators.create("mean")
    mean.check(1)
    with pytest.raises(TooFewClients):
        mean.check(0)


@pytest.mark.parametrize(("malformed", "is_skipped"), [(1, False), (2, True)])
def test_so_are_as_many_well_formed_rows(malformed, is_skipped):
    rows = torch.randn(6, D, generator=torch.Generator().manual_seed(0))
    rows[:malformed] = torch.nan
    out = aggregators.create("krum", f=1).aggregate(Updates(rows))
    assert (out.skipped is not None) is is_skipped
    assert bool(out.delta.any()) is not is_skipped


def test_f_is_a_fifth_of_the_clients_where_nobody_says_it():
    rule = aggregators.create("krum")
    assert [rule.byzantine(clients) for clients in (4, 5, 14, 15)] == [0, 1, 2, 3]
    assert aggregators.create("krum", f=2).byzantine(15) == 2
    assert aggregators.create("krum", f="auto").byzantine(15) == 6, "15 ≥ 2·6 + 3"
