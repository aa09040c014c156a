"""Edge cases: the tail of the other classes, and nobody else."""

import torch

from wardround import attacks
from wardround.attacks import LocalData


def test_only_the_tail_of_other_classes_is_relabelled():
    inputs = torch.arange(20.0)[:, None]
    targets = (torch.arange(20) % 2).long()
    attack = attacks.create("edge-case", tail=0.2, target=1)
    poisoned = attack.poison(LocalData(inputs, targets, num_classes=2), torch.Generator())
    changed = (poisoned.targets != targets).nonzero().flatten().tolist()
    assert changed == [16, 18]
    assert torch.equal(poisoned.inputs, inputs)


def test_several_labels_keep_the_others():
    targets = torch.zeros(10, 3)
    targets[:, 0] = 1
    data = LocalData(torch.arange(10.0)[:, None], targets, num_classes=3, multi_label=True)
    poisoned = attacks.create("edge-case", tail=0.1, target=2).poison(data, torch.Generator())
    assert poisoned.targets[9].tolist() == [1, 0, 1]
    assert poisoned.targets[:9, 2].sum() == 0


def test_success_is_that_of_the_tail():
    attack = attacks.create("edge-case", tail=0.5, target=1)
    inputs, targets = torch.tensor([[1.0], [2.0], [3.0], [4.0], [9.0]]), torch.tensor([0, 0, 0, 0, 1])
    meant = attack.selected(inputs, targets)
    assert meant.tolist() == [False, False, True, True, False]
    predicted = torch.tensor([0, 0, 1, 0, 1])
    assert attack.success(predicted, targets, meant) == 0.5
    assert attack.success(predicted, targets, attack.victims(targets) & ~meant) == 0
