"""DBA: parts of the trigger make up the whole, and each attacker has one."""

import pytest
import torch

from wardround import attacks
from wardround.attacks import Campaign, LocalData


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 8), (2, 1, 12, 12), (2, 3, 12, 12)])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_parts_make_up_the_whole_trigger(shape, parts):
    attack = attacks.create("dba", pieces=parts, patch=4, value=7, features=[0, 3, 5, -1])
    inputs = torch.zeros(shape)
    stamped = [part.trigger(inputs) for part, _ in attack.assign([f"c{i}" for i in range(4)])]
    assert len(stamped) == parts
    together = torch.stack(stamped)
    assert ((together != 0).sum(0) <= 1).all(), "no two parts overlap"
    assert torch.equal(together.sum(0), attack.trigger(inputs))


def test_attackers_take_the_parts_in_turn_and_train_on_their_own():
    attack = attacks.create("dba", pieces=2, features=[0, 1], value=9, share=1.0)
    campaign = Campaign(attack, ["a", "b", "c"])
    data = LocalData(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), num_classes=2)
    marks = {client: campaign.poison(client, data, 1).inputs[0].tolist() for client in "abc"}
    assert marks == {"a": [9.0, 0.0], "b": [0.0, 9.0], "c": [9.0, 0.0]}
    assert campaign.poison("d", data, 1) is data
    assert attack.backdoors[0].trigger(data.inputs)[0].tolist() == [9.0, 9.0], "the whole one is measured"


def test_more_parts_than_features_share_them():
    attack = attacks.create("dba", pieces=4, features=[2])
    for part, _ in attack.assign(list("abcd")):
        assert (part.trigger(torch.zeros(1, 3)) != 0).sum() == 1
