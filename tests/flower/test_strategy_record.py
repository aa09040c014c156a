"""What a user's own app records: metrics under the names that reports know."""

import pytest
import torch

from wardround import Aggregation, Updates
from wardround.flower.strategy_record import client_records, known_metrics


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("eval_acc", "accuracy"),
        ("val-loss", "loss"),
        ("Test_AUC", "auroc"),
        ("f1", "f1"),
        ("dice", "dice"),
        ("val_c-index", "c_index"),
        ("Concordance_Index", "c_index"),
    ],
)
def test_metrics_get_the_names_that_reports_know(said, known):
    assert known_metrics({said: 0.5}) == {known: 0.5}


def test_a_dropped_client_says_why():
    updates = Updates(torch.ones(2, 3), ["node-2", "node-3"], [10, 20], {"loss": [0.1, 0.2]})
    result = Aggregation(torch.zeros(3), weights=torch.tensor([1.0, 0.0]), dropped={"node-3": "not finite"})
    first, second = client_records(4, ["north", "south"], updates, {}, result)
    assert (first.client, first.status, first.reason, first.weight, first.num_samples) == (
        "north",
        "ok",
        None,
        1.0,
        10,
    )
    assert (second.status, second.reason, second.flag) == ("dropped", "not finite", None)
    assert second["reported_loss"] == 0.2
    assert first["norm"] == pytest.approx(3**0.5)
