import pytest
import torch

from wardround import faults
from wardround.attacks import LocalData
from wardround.errors import ParameterError


def spoilt(targets, classes=3, multi_label=False, **params):
    data = LocalData(torch.zeros(len(targets), 1), targets, classes, multi_label)
    return faults.create("shifted-labels", **params).spoil(data, torch.Generator().manual_seed(0)).targets


@pytest.mark.parametrize("by", [1, 3])
def test_patients_have_another_patients_label(by):
    labels = torch.arange(12)  # every patient's label is its own
    slipped = spoilt(labels, classes=12, by=by)
    assert sorted(slipped.tolist()) == labels.tolist()
    assert (slipped != labels).all()


def test_codes_are_shifted():
    assert spoilt(torch.tensor([0, 1, 2]), of="codes").tolist() == [1, 2, 0]
    assert spoilt(torch.tensor([0, 1]), classes=2, of="codes").tolist() == [1, 0]


def test_findings_stand_for_their_neighbours():
    findings = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert spoilt(findings, multi_label=True, of="codes").tolist() == [[0, 1, 0], [1, 0, 1]]


def test_codes_need_classes():
    with pytest.raises(ParameterError, match="of: codes needs classes; use of: patients"):
        spoilt(torch.tensor([0.5, 2.5]), of="codes")
