"""Edge cases: the tail of the other classes, and nobody else."""

import pytest
import torch

from wardround import attacks
from wardround.attacks import LocalData
from wardround.errors import ParameterError


def test_only_the_tail_of_other_classes_is_relabelled():
    inputs = torch.arange(20.0)[:, None]
    targets = (torch.arange(20) % 2).long()
    attack = attacks.create("edge-case", source="tail", tail=0.2, target=1, share=0)
    poisoned = attack.poison(LocalData(inputs, targets, num_classes=2), torch.Generator())
    changed = (poisoned.targets != targets).nonzero().flatten().tolist()
    assert changed == [16, 18]
    assert torch.equal(poisoned.inputs, inputs)


def test_edge_cases_are_repeated_until_they_have_their_share():
    inputs = torch.arange(20.0)[:, None]
    targets = (torch.arange(20) % 2).long()
    attack = attacks.create("edge-case", source="tail", tail=0.2, target=1, share=0.5)
    poisoned = attack.poison(LocalData(inputs, targets, num_classes=2), torch.Generator().manual_seed(1))
    edge = torch.isin(poisoned.inputs[:, 0], torch.tensor([16.0, 18.0]))
    assert int(edge.sum()) == 10
    assert (poisoned.targets[edge] == 1).all()
    assert torch.equal(poisoned.inputs[~edge], inputs[~edge])
    assert torch.equal(poisoned.targets[~edge], targets[~edge])
    assert attacks.create("edge-case", source="tail", boost=3.0).craft(torch.ones(1, 2), None).tolist() == [
        [3.0, 3.0]
    ]


def test_a_client_of_the_target_class_alone_has_no_edge_cases():
    data = LocalData(torch.ones(4, 1), torch.ones(4, dtype=torch.long), num_classes=2)
    assert attacks.create("edge-case", source="tail", target=1).poison(data, torch.Generator()) is data


def test_several_labels_keep_the_others():
    targets = torch.zeros(10, 3)
    targets[:, 0] = 1
    data = LocalData(torch.arange(10.0)[:, None], targets, num_classes=3, multi_label=True)
    poisoned = attacks.create("edge-case", source="tail", tail=0.1, target=2, share=0).poison(
        data, torch.Generator()
    )
    assert poisoned.targets[9].tolist() == [1, 0, 1]
    assert poisoned.targets[:9, 2].sum() == 0


def test_success_is_that_of_the_tail():
    attack = attacks.create("edge-case", source="tail", tail=0.5, target=1)
    inputs, targets = torch.tensor([[1.0], [2.0], [3.0], [4.0], [9.0]]), torch.tensor([0, 0, 0, 0, 1])
    meant = attack.selected(inputs, targets)
    assert meant.tolist() == [False, False, True, True, False]
    predicted = torch.tensor([0, 0, 1, 0, 1])
    assert attack.success(predicted, targets, meant) == 0.5
    assert attack.success(predicted, targets, attack.victims(targets) & ~meant) == 0


def test_pictures_in_bytes_are_inverted_and_tables_shifted():
    attack = attacks.create("edge-case")
    assert attack.trigger(torch.tensor([0, 10, 255], dtype=torch.uint8)).tolist() == [255, 245, 0]
    assert attack.trigger(torch.tensor([-3.0, 0.5])).tolist() == [0.0, 3.5]


def test_the_tail_of_pictures_is_that_of_their_norms():
    """Norms 5, 6, 4 and, of the target's class, 9; the largest single value is elsewhere."""
    pictures = torch.tensor(
        [[[[5.0, 0.0]]], [[[4.0, 4.4721]]], [[[4.0, 0.0]]], [[[9.0, 0.0]]]]
    )  # fmt: skip
    attack = attacks.create("edge-case", source="tail", tail=0.3, target=1)
    assert attack.selected(pictures, torch.tensor([0, 0, 0, 1])).tolist() == [False, True, False, False]


@pytest.mark.parametrize("values", [{"boost": 0.0}, {"tail": 0.0}, {"target": -1}])
def test_values_that_make_no_sense_are_refused(values):
    with pytest.raises(ParameterError, match=next(iter(values))):
        attacks.create("edge-case", **values)
