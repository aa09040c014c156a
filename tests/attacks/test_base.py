"""An attack that does not keep its contract is named, with its file and what was expected."""

import re

import pytest
import torch

from wardround.attacks import Attack, Campaign, DataAttack, LocalData, MetricsAttack, registry
from wardround.errors import ContractError

ROWS = torch.ones(4, 3)
CLIENTS = ["a", "b", "c", "d"]


def strike(attack):
    loss = torch.ones(4, dtype=torch.float64)
    return Campaign(attack, ["b", "c"]).strike(ROWS, CLIENTS, {"loss": loss}, 1, torch.zeros(3), None, 4)


def message_of(error):
    assert re.match(r"attack 'wrong' \(.*test_base\.py, line \d+\): ", str(error.value)), error.value
    return str(error.value).split("): ", 1)[1]


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        (None, "NoneType"),
        ([[1.0, 1.0, 1.0]], "list"),
        (torch.ones(2, 3), "shape (2, 3)"),
        (torch.ones(3), "shape (3,)"),
        (torch.ones(1, 4), "shape (1, 4)"),
    ],
)
def test_wrong_rows_are_explained(rows, got):
    class Wrong(Attack):
        name = "wrong"

        def craft(self, own, knowledge):
            return rows

    with pytest.raises(ContractError) as error:
        strike(Wrong())
    assert message_of(error) == (
        f"craft returned {got}, expected a tensor of shape (1, 3), one row per client"
    )


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        (None, "report returned NoneType, expected a dict of what was measured: ['loss']"),
        ({"auc": torch.ones(1)}, "report returned ['auc'], expected a dict of what was measured: ['loss']"),
        (
            {"loss": 0.5},
            "report returned 'loss' as float, expected a tensor of shape (1,), one value per client",
        ),
        (
            {"loss": torch.ones(4)},
            "report returned 'loss' as shape (4,), expected a tensor of shape (1,), one value per client",
        ),
    ],
)
def test_wrong_metrics_are_explained(metrics, problem):
    class Wrong(MetricsAttack):
        name = "wrong"

        def report(self, measured, knowledge):
            return metrics

    with pytest.raises(ContractError) as error:
        strike(Wrong())
    assert message_of(error) == problem


@pytest.mark.parametrize(
    ("poisoned", "problem"),
    [
        (None, "poison returned NoneType, expected a LocalData"),
        (
            LocalData(torch.ones(5, 2), torch.ones(4), 2),
            "poison returned inputs as shape (5, 2), expected a tensor of shape (4, 2), one entry per sample",
        ),
        (
            LocalData(torch.ones(4, 2), [1, 1, 1, 1], 2),
            "poison returned targets as list, expected a tensor of shape (4,), one entry per sample",
        ),
    ],
)
def test_wrong_data_is_explained(poisoned, problem):
    class Wrong(DataAttack):
        name = "wrong"

        def poison(self, data, generator):
            return poisoned

    with pytest.raises(ContractError) as error:
        Campaign(Wrong(), ["b"]).poison("b", LocalData(torch.zeros(4, 2), torch.zeros(4), 2), 1)
    assert message_of(error) == problem


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Attack, "craft(own, knowledge)"),
        (DataAttack, "poison(data, generator)"),
        (MetricsAttack, "report(metrics, knowledge)"),
    ],
)
def test_an_attack_without_its_method_is_refused_when_it_is_registered(kind, method):
    with pytest.raises(ContractError) as error:

        @registry.register("unfinished")
        class Unfinished(kind):
            pass

    assert str(error.value).endswith(f"Unfinished must define {method}")
    assert "unfinished" not in registry.available()


def test_honest_updates_are_sent_as_they_are():
    class Silent(MetricsAttack):
        name = "silent"

        def report(self, metrics, knowledge):
            return {}

    sent, metrics = strike(Silent())
    assert torch.equal(sent, ROWS)
    assert torch.equal(metrics["loss"], torch.ones(4).double())
