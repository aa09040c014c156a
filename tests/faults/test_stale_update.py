import torch

from wardround import faults
from wardround.faults import BrokenClients


def test_the_update_of_some_rounds_ago():
    broken = BrokenClients(faults.create("stale-update", delay=3), ["b"])
    sent = [float(broken.send(torch.full((1, 2), float(t)), ["b"], t)[0, 0]) for t in range(1, 8)]
    assert sent == [1, 1, 1, 1, 2, 3, 4]


def test_what_was_trained_before_the_fault_is_remembered():
    broken = BrokenClients(faults.create("stale-update", delay=2), ["b"], start=4, end=6)
    sent = [float(broken.send(torch.full((1, 2), float(t)), ["b"], t)[0, 0]) for t in range(1, 8)]
    assert sent == [1, 2, 3, 2, 3, 6, 7]


def test_only_so_many_updates_are_kept():
    broken = BrokenClients(faults.create("stale-update", delay=2), ["b"])
    for t in range(20):
        broken.send(torch.zeros(1, 2), ["b"], t)
    assert len(broken.fault.past["b"]) == 3
