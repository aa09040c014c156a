"""Label flipping: rates and targets of every mode, several labels included."""

from __future__ import annotations

import pytest
import torch

from wardround import attacks
from wardround.attacks import LocalData
from wardround.errors import ParameterError

N = 20_000


def close(share, expected, n=N):
    """Within five standard errors of a binomial share."""
    return abs(share - expected) <= 5 * (max(expected * (1 - expected), 1e-12) / n) ** 0.5


def poison(data, seed=0, **params):
    return attacks.create("label-flip", **params).poison(data, torch.Generator().manual_seed(seed)).targets


@pytest.fixture
def classes():
    return LocalData(torch.zeros(N, 1), torch.arange(N) % 5, num_classes=5)


@pytest.fixture
def findings():
    targets = (torch.rand(N, 4, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    return LocalData(torch.zeros(N, 1), targets, num_classes=4, multi_label=True)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.8, 1.0])
@pytest.mark.parametrize("mode", ["random", "invert"])
def test_rate_is_p(classes, mode, p):
    flipped = poison(classes, p=p, mode=mode) != classes.targets
    movable = classes.targets != 2 if mode == "invert" else torch.ones(N, dtype=torch.bool)
    assert close(flipped[movable].double().mean().item(), p, int(movable.sum()))
    assert not flipped[~movable].any()  # C−1−y leaves the middle class alone


def test_default_is_the_fedbnp_documents(classes):
    assert torch.equal(poison(classes), poison(classes, p=0.8, mode="random"))


def test_random_goes_to_every_other_class_alike(classes):
    targets = poison(classes, p=1)
    for source in range(5):
        arrived = torch.bincount(targets[classes.targets == source], minlength=5).double()
        assert arrived[source] == 0
        for other in set(range(5)) - {source}:
            assert close((arrived[other] / arrived.sum()).item(), 0.25, N // 5)


def test_invert_mirrors(classes):
    assert torch.equal(poison(classes, p=1, mode="invert"), 4 - classes.targets)


@pytest.mark.parametrize("given", [{"mode": "source-target"}, {}])
def test_source_to_target(classes, given):
    targets = poison(classes, p=0.5, source=1, target=3, **given)
    source = classes.targets == 1
    assert torch.equal(targets[~source], classes.targets[~source])
    assert set(targets[source].tolist()) == {1, 3}
    assert close((targets[source] == 3).double().mean().item(), 0.5, N // 5)


def test_binary_flip_is_the_other_class():
    data = LocalData(torch.zeros(6, 1), torch.tensor([0, 1, 0, 1, 1, 0]), 2)
    assert torch.equal(poison(data, p=1), 1 - data.targets)


@pytest.mark.parametrize("p", [0.1, 0.8])
@pytest.mark.parametrize("mode", ["random", "invert"])
def test_several_labels_turn_over_one_by_one(findings, mode, p):
    flipped = poison(findings, p=p, mode=mode) != findings.targets
    for label in range(4):
        assert close(flipped[:, label].double().mean().item(), p)
    both = (flipped[:, 0] & flipped[:, 1]).double().mean().item()
    assert close(both, p * p)  # independently of each other


def test_a_finding_moves_from_source_to_target(findings):
    targets = poison(findings, p=1, source=0, target=2)
    had = findings.targets[:, 0] == 1
    assert (targets[had, 0] == 0).all()
    assert (targets[had, 2] == 1).all()
    assert torch.equal(targets[~had], findings.targets[~had])
    assert torch.equal(targets[:, [1, 3]], findings.targets[:, [1, 3]])
    half = poison(findings, p=0.5, source=0, target=2)
    assert close((half[had, 0] == 0).double().mean().item(), 0.5, int(had.sum()))


def test_unknown_findings_stay_unknown(findings):
    findings.targets[3, 1] = torch.nan
    targets = poison(findings, p=1)
    assert torch.isnan(targets[3, 1])
    assert targets.isnan().sum() == 1


def test_updates_are_left_alone(honest, knowledge):
    assert torch.equal(attacks.create("label-flip").craft(honest[:2], knowledge(2)), honest[:2])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mode": "source-target"}, "needs a source and another target"),
        ({"source": 1, "target": 1}, "needs a source and another target"),
        ({"mode": "invert", "source": 1, "target": 2}, "belong to mode source-target"),
        ({"source": 1}, "belong to mode source-target"),
        ({"p": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_parameters(params, message):
    with pytest.raises(ParameterError, match=message):
        attacks.create("label-flip", **params)


def test_classes_must_exist(classes):
    with pytest.raises(ParameterError, match="target must be below 5, got 7"):
        poison(classes, source=0, target=7)
    with pytest.raises(ParameterError, match="two or more classes"):
        poison(LocalData(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), 1))
