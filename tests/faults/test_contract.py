"""What every registered fault promises, whatever is broken."""

import pytest
import torch

from wardround import faults
from wardround.attacks import LocalData
from wardround.runs.config import load_config
from wardround.runs.runner import build

FAULTS = [name for name in faults.available() if name != "none"]
KINDS = {
    "table": (torch.float32, (40, 6), 2, False),
    "series": (torch.float32, (40, 5, 3), 2, False),
    "pictures": (torch.uint8, (40, 1, 8, 8), 4, False),
    "findings": (torch.float32, (40, 6), 3, True),
}


def held(kind, seed=0):
    dtype, shape, classes, multi_label = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.uint8:
        inputs = torch.randint(0, 256, shape, generator=generator, dtype=dtype)
    else:
        inputs = torch.randn(shape, generator=generator)
    if multi_label:
        targets = torch.randint(0, 2, (shape[0], classes), generator=generator).float()
    else:
        targets = torch.randint(0, classes, (shape[0],), generator=generator)
    return LocalData(inputs, targets, classes, multi_label)


def spoilt(name, data, seed=1):
    return faults.BrokenClients(faults.create(name), ["b"], seed=seed).spoil("b", data)


def test_every_fault_is_there():
    assert FAULTS == [
        "duplicate-patients", "negated-features", "shifted-labels", "stale-update", "stuck-sensor", "unit-error",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAULTS)
def test_data_is_spoilt_the_same_way_each_time_and_the_original_is_not_changed(name, kind):
    data, before = held(kind), held(kind)
    once, again = spoilt(name, data), spoilt(name, data)
    assert torch.equal(data.inputs, before.inputs)
    assert torch.equal(data.targets, before.targets)
    assert torch.equal(once.inputs, again.inputs)
    assert torch.equal(once.targets, again.targets)
    assert once.inputs.dtype == data.inputs.dtype
    assert once.inputs.shape[1:] == data.inputs.shape[1:]
    assert len(once.inputs) == len(once.targets)
    assert bool(torch.isfinite(once.inputs.float()).all())
    changed = once.inputs.shape != data.inputs.shape or not (
        torch.equal(once.inputs, data.inputs) and torch.equal(once.targets, data.targets)
    )
    assert changed == faults.registry.get(name).spoils_data


@pytest.mark.parametrize("name", [n for n in FAULTS if "share" in faults.registry.keys(n)])
def test_each_hospital_is_broken_in_its_own_way(name):
    broken = faults.BrokenClients(faults.create(name, share=0.5), ["a", "b"])
    one, other = broken.spoil("a", held("table")), broken.spoil("b", held("table"))
    assert not torch.equal(one.inputs, other.inputs)


@pytest.mark.parametrize("name", FAULTS)
def test_state_survives_save_and_load(name, tmp_path):
    def rows(t):
        return torch.randn(3, 4, generator=torch.Generator().manual_seed(t))

    straight, before = (faults.BrokenClients(faults.create(name), ["b", "c"], start=3) for _ in range(2))
    clients = ["a", "b", "c"]
    for t in range(1, 5):
        straight.send(rows(t), clients, t)
        before.send(rows(t), clients, t)
    torch.save(before.state_dict(), tmp_path / "state.pt")
    resumed = faults.BrokenClients(faults.create(name), ["b", "c"], start=3)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for t in range(5, 12):
        assert torch.equal(straight.send(rows(t), clients, t), resumed.send(rows(t), clients, t))


@pytest.mark.parametrize("name", FAULTS)
def test_only_broken_clients_train_otherwise_and_only_while_the_fault_is_on(name, tiny):
    """The first round of two runs differs in the rows of the broken clients alone; before the fault in none."""
    fault = {"name": name, "clients": ["hospital-01", "hospital-04"], "start": 2}
    broken = build(load_config({**tiny, "rounds": 3, "fault": fault}))
    healthy = build(load_config({**tiny, "rounds": 3}))
    assert [one.columns["norm"] for one in broken.step(1).clients] == [
        one.columns["norm"] for one in healthy.step(1).clients
    ]
    ours, theirs = broken.step(2).clients, healthy.step(2).clients
    differing = {
        a.client for a, b in zip(ours, theirs, strict=True) if a.columns["norm"] != b.columns["norm"]
    }
    assert differing == {"hospital-01", "hospital-04"}
    assert {one.client for one in ours if one.failing} == differing
    assert not any(one.byzantine for one in ours)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_explained(name):
    fault = faults.registry.get(name)
    assert fault.__doc__
    assert len(fault.__doc__.split("\n")[0]) > 20
