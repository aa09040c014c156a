"""A rule that does not keep its contract is named, with its file and what was expected."""

import re

import pytest
import torch

from wardround import Aggregation, Updates
from wardround.aggregators.base import Aggregator, ScalarRule, registry
from wardround.errors import ContractError

N, D = 4, 3


@pytest.fixture
def wrong_rule(monkeypatch):
    """Make a registered rule that returns whatever is given."""

    def make(result):
        monkeypatch.setattr(registry, "_members", dict(registry._members))

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
