import torch

from wardround import faults
from wardround.attacks import LocalData
from wardround.runs.config import load_config
from wardround.runs.runner import build


def test_patients_occur_more_than_once():
    data = LocalData(torch.arange(10.0)[:, None], torch.arange(10), 10)
    fault = faults.create("duplicate-patients", times=4, share=0.3)
    spoilt = fault.spoil(data, torch.Generator().manual_seed(0))
    assert len(spoilt.targets) == 10 + 3 * 3
    assert torch.equal(spoilt.inputs.flatten().long(), spoilt.targets)
    assert sorted(spoilt.targets.bincount().tolist()) == [1] * 7 + [4] * 3


def test_the_hospital_reports_as_many_samples(tiny):
    fault = {"name": "duplicate-patients", "clients": ["hospital-02"], "times": 3, "start": 2}
    federation = build(load_config({**tiny, "fault": fault}))
    before, after = ({one.client: one.num_samples for one in federation.step(t).clients} for t in (1, 2))
    assert after.pop("hospital-02") == 3 * before.pop("hospital-02")
    assert after == before
