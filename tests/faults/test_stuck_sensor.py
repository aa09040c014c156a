import torch

from wardround import faults
from wardround.attacks import LocalData


def test_one_value_that_a_patient_had():
    data = LocalData(
        torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(50).long(), 2
    )
    spoilt = faults.create("stuck-sensor", share=0.25).spoil(data, torch.Generator().manual_seed(3)).inputs
    stuck = spoilt.std(0) == 0
    assert stuck.sum() == 2
    assert torch.equal(spoilt[:, ~stuck], data.inputs[:, ~stuck])
    (patient,) = (data.inputs[:, stuck] == spoilt[0, stuck]).all(1).nonzero().flatten().tolist()
    assert torch.equal(data.inputs[patient, stuck], spoilt[7, stuck])
