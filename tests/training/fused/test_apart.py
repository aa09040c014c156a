"""The fused engine in a process of its own."""

import os
import signal
import socket

import pytest
import torch
from torch import nn

from wardround.errors import WorkerDied
from wardround.training.base import ClientData, ClientTask, Objective, TrainingParams
from wardround.training.fused import FusedTrainer, why_not_fused
from wardround.training.fused.apart import FusedApart
from wardround.training.processes import why_no_processes

pytestmark = pytest.mark.skipif(
    why_not_fused() is not None or why_no_processes() is not None, reason="needs numba and fork"
)
SAMPLES, FEATURES = 30, 4


def negated(batch):
    return -batch


def fail(batch):
    raise ValueError(f"no input of {batch.shape[1]} columns")


def kill_self(batch):
    os.kill(os.getpid(), signal.SIGKILL)


def fused():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 3), nn.ReLU(), nn.Dropout(0.2), nn.Linear(3, 1))
    return FusedTrainer(network, Objective(False, nn.Identity()), TrainingParams(batch_size=8, epochs=2))


def weights(trainer):
    return torch.linspace(-1, 1, trainer.stack.size)


def split(seed=1):
    return torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(seed))


def task(inputs, transform=None, **more):
    rows = torch.arange(0, SAMPLES, 2)
    data = ClientData(inputs, rows, (inputs[rows, 0] > 0).float())
    return ClientTask("north", data, seed=5, transform=transform, **more)


@pytest.fixture
def apart():
    trainer = FusedApart(fused())
    yield trainer
    trainer.close()


def same(one, other):
    assert torch.equal(one.matrix, other.matrix)
    assert torch.equal(one.loss, other.loss)
    assert (one.parts is None) == (other.parts is None)
    assert one.parts is None or torch.equal(one.parts, other.parts)


def test_it_trains_like_the_engine_itself(apart):
    here, inputs = fused(), split()
    start = weights(here)
    own = {"weights": start + 0.1, "correction": start / 10, "stealth": 0.2}
    for tasks, outcomes in (([task(inputs)], None), ([task(inputs, negated, **own), task(inputs)], 2)):
        same(apart.train(start, tasks, 0.1, 0.01, outcomes), here.train(start, tasks, 0.1, 0.01, outcomes))


def test_the_process_stays_from_round_to_round_and_ends_when_closed(apart):
    inputs, start = split(), weights(apart.trainer)
    apart.train(start, [task(inputs)], 0.1, 0.0)
    first = apart._process.process.pid
    apart.train(start, [task(inputs)], 0.1, 0.0)
    assert apart._process.process.pid == first
    apart.close()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    same(apart.train(start, [task(inputs)], 0.1, 0.0), fused().train(start, [task(inputs)], 0.1, 0.0))


def test_samples_that_it_does_not_know_reach_it(apart):
    start = weights(apart.trainer)
    changed = split()
    for inputs in (split(), split(2), changed):
        same(apart.train(start, [task(inputs)], 0.1, 0.0), fused().train(start, [task(inputs)], 0.1, 0.0))
    changed.mul_(2)
    same(apart.train(start, [task(changed)], 0.1, 0.0), fused().train(start, [task(changed)], 0.1, 0.0))


def test_a_failure_is_that_of_the_engine_and_costs_one_round(apart):
    inputs, start = split(), weights(apart.trainer)
    with pytest.raises(ValueError, match="no input of 4 columns") as failure:
        apart.train(start, [task(inputs, fail)], 0.1, 0.0)
    assert "in the training process" in failure.value.__notes__[0]
    assert apart.train(start, [task(inputs)], 0.1, 0.0).matrix.any()


def test_its_death_is_reported_and_costs_one_round(apart):
    inputs, start = split(), weights(apart.trainer)
    with pytest.raises(WorkerDied, match=r"died \(exit code -9"):
        apart.train(start, [task(inputs, kill_self)], 0.1, 0.0)
    assert apart.train(start, [task(inputs)], 0.1, 0.0).matrix.any()


def test_it_does_not_hold_its_parents_connections_open(apart):
    ours, theirs = socket.socketpair()
    apart.train(weights(apart.trainer), [task(split())], 0.1, 0.0)
    theirs.close()  # with a copy in the process, the other side would wait until that ends too
    ours.settimeout(30)
    assert ours.recv(1) == b""
    ours.close()
