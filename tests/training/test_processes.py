import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from fast_cases import slow_but
from torch import nn

from wardround.errors import ConfigError, WorkerDied
from wardround.training import (
    ClientData,
    ClientTask,
    Objective,
    ProcessesTrainer,
    SequentialTrainer,
    TrainingParams,
)
from wardround.updates import Layout

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="workers are forked, on Linux only"
)


def brighten(batch, by):
    return batch + by


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )


def weights_of(model):
    return Layout.of(model).flatten(model.state_dict())


def children():
    return {process.pid for process in multiprocessing.active_children()}


def running(pid):
    """Alive, and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("workers", slow_but([2], [1, 2, 3]))
def test_results_are_those_of_the_sequential_engine_to_the_last_bit(workers, federation, objective):
    model, params = network(), TrainingParams(batch_size=4, epochs=2)
    start = weights_of(model)
    tasks = federation([5, 33, 12, 20, 7], (1, 6, 6), 3, "multi-class")
    tasks[0] = ClientTask("own", tasks[0].data, 3, weights=start * 0.9, transform=partial(brighten, by=0.2))
    tasks[1] = ClientTask(
        "corrected", tasks[1].data, 4, weights=start * 0.8, correction=start.flip(0), stealth=0.5
    )
    tasks[3] = ClientTask("corrected too", tasks[3].data, 5, correction=start.roll(1))
    one = SequentialTrainer(model, objective("multi-class"), params)
    before = children()
    with ProcessesTrainer(model, objective("multi-class"), params, workers) as many:
        for lr, prox_mu in ((0.01, 0.0), (0.02, 0.1)):
            expected, out = one.train(start, tasks, lr, prox_mu), many.train(start, tasks, lr, prox_mu)
            assert torch.equal(out.matrix, expected.matrix)
            assert torch.equal(out.loss, expected.loss)
        assert len(children() - before) == workers
        kept = out.matrix.clone()
        many.train(start * 1.1, tasks, 0.01, 0.0)
        assert torch.equal(out.matrix, kept)  # later rounds do not write into earlier results
    assert children() == before


@pytest.mark.slow
def test_new_samples_targets_and_more_clients_reach_running_workers(federation, objective):
    model, params = network(), TrainingParams(batch_size=4)
    start = weights_of(model)
    one = SequentialTrainer(model, objective("multi-class"), params)
    with ProcessesTrainer(model, objective("multi-class"), params, 2) as many:

        def check(tasks):
            expected, out = one.train(start, tasks, 0.01, 0.0), many.train(start, tasks, 0.01, 0.0)
            assert torch.equal(out.matrix, expected.matrix)
            return expected.matrix

        tasks = federation([9, 8], (1, 6, 6), 3, "multi-class")
        first = check(tasks)
        workers = children()
        data = tasks[0].data
        check([ClientTask("poisoned", ClientData(data.inputs, data.rows, 2 - data.targets), 1), tasks[1]])
        assert children() == workers  # they stay
        check(federation([9, 8, 7, 6], (1, 6, 6), 3, "multi-class", seed=1))
        data.inputs.mul_(3)
        assert not torch.equal(check(tasks), first)
        for seed in range(2, 14):
            check(federation([9, 8], (1, 6, 6), 3, "multi-class", seed=seed))
        assert len(many._splits) == 8


def test_closing_is_not_the_end(federation, objective):
    model, before = network(), children()
    trainer = ProcessesTrainer(model, objective("multi-class"), TrainingParams(), 2)
    tasks = federation([9, 8], (1, 6, 6), 3, "multi-class")
    first = trainer.train(weights_of(model), tasks, 0.01, 0.0).matrix
    trainer.close()
    trainer.close()
    assert children() == before
    assert torch.equal(trainer.train(weights_of(model), tasks, 0.01, 0.0).matrix, first)
    del trainer
    assert children() == before


def test_two_engines_side_by_side_do_not_hold_each_other_open(federation, objective):
    model, before = network(), children()
    tasks = federation([9, 8], (1, 6, 6), 3, "multi-class")
    trainers = [ProcessesTrainer(model, objective("multi-class"), TrainingParams(), 2) for _ in range(2)]
    for trainer in trainers:
        trainer.train(weights_of(model), tasks, 0.01, 0.0)
    assert len(children() - before) == 4
    trainers[0].close()
    assert len(children() - before) == 2
    trainers[1].close()
    assert children() == before


class Suicidal(nn.Module):
    """A network that ends its process when it sees a certain sample."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, inputs):
        if (inputs == 99).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (inputs == 55).any():
            raise ValueError("sample 55 is bad")
        return self.linear(inputs)


def poisoned(tasks, value):
    inputs = tasks[0].data.inputs.clone()
    inputs[tasks[1].data.rows[0]] = value
    return [ClientTask(t.client, ClientData(inputs, t.data.rows, t.data.targets), t.seed) for t in tasks]


@pytest.mark.slow
def test_a_dead_worker_is_a_clear_error_and_no_hang(federation, objective):
    model, before = Suicidal(), children()
    tasks = federation([9, 8, 7, 6], (4,))
    with ProcessesTrainer(model, objective("binary"), TrainingParams(), 2) as trainer:
        with pytest.raises(WorkerDied, match=r"killed by SIGKILL.*client hospital-01"):
            trainer.train(weights_of(model), poisoned(tasks, 99), 0.01, 0.0)
        assert children() == before
        assert trainer.train(weights_of(model), tasks, 0.01, 0.0).matrix.shape == (4, 5)
        for process in multiprocessing.active_children():
            if process.pid not in before:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
        with pytest.raises(WorkerDied, match="killed by SIGKILL"):
            trainer.train(weights_of(model), tasks, 0.01, 0.0)
    assert children() == before


def test_an_error_in_a_worker_is_raised_here(federation, objective):
    model, before = Suicidal(), children()
    trainer = ProcessesTrainer(model, objective("binary"), TrainingParams(), 2)
    with pytest.raises(ValueError, match="sample 55 is bad") as caught:
        trainer.train(weights_of(model), poisoned(federation([9, 8, 7], (4,)), 55), 0.01, 0.0)
    assert "hospital-01" in caught.value.__notes__[0]
    assert children() == before


def test_a_transform_that_cannot_travel_is_refused(federation, objective):
    model = Suicidal()
    tasks = federation([9, 8], (4,))
    tasks[0] = ClientTask("hospital-00", tasks[0].data, 1, transform=lambda batch: batch)
    trainer = ProcessesTrainer(model, objective("binary"), TrainingParams(), 2)
    with pytest.raises(ConfigError, match="hospital-00: its transform cannot travel"):
        trainer.train(weights_of(model), tasks, 0.01, 0.0)


def stopped(run, how):
    """What a run said on standard error when it was stopped, as a terminal does it.

    Ctrl-C goes to the whole group, and is pressed again where it hit a moment in which Python ignores exceptions (in a
    destructor, say); a killed parent goes alone.
    """
    for _ in range(20):
        (os.killpg if how == signal.SIGINT else os.kill)(run.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return run.communicate(timeout=10)[1]
    raise AssertionError("it did not stop")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(how, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, torch
            from torch import nn
            from wardround.training import *

            model = nn.Sequential(nn.Linear(4, 1))
            data = ClientData(torch.randn(20, 4), torch.arange(20), torch.zeros(20))
            tasks = [ClientTask(str(i), data, i) for i in range(4)]
            trainer = ProcessesTrainer(model, Objective(False, lambda x: x), TrainingParams(epochs=3), 2)
            trainer.train(torch.zeros(5), tasks, 0.1, 0.0)
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)
            while True:
                trainer.train(torch.zeros(5), tasks, 0.1, 0.0)
            """
        )
    )
    run = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    workers = [int(pid) for pid in run.stdout.readline().split()]
    assert len(workers) == 2
    try:
        errors = stopped(run, how)
    finally:
        run.kill()
    assert run.returncode == -how or "KeyboardInterrupt" in errors
    for _ in range(1200):
        if not any(running(pid) for pid in workers):
            break
        time.sleep(0.1)
    assert not any(running(pid) for pid in workers)


def test_daemons_may_not_have_workers(objective):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def attempt():
        try:
            ProcessesTrainer(network(), objective("multi-class"), TrainingParams(), 2)
        except ConfigError as error:
            there.send(str(error))

    process = context.Process(target=attempt, daemon=True)
    process.start()
    assert here.poll(30)
    assert "daemon worker" in here.recv()
    process.join()


def test_the_number_of_workers_must_make_sense(objective):
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        ProcessesTrainer(network(), objective("multi-class"), TrainingParams(), 0)


def test_a_single_client_needs_no_workers(federation):
    model, before = network(), children()
    trainer = ProcessesTrainer(model, Objective(True, torch.nn.Identity()), TrainingParams(), 2)
    out = trainer.train(weights_of(model), federation([9], (1, 6, 6), 3, "multi-class"), 0.01, 0.0)
    assert out.matrix.shape[0] == 1
    assert children() == before


@pytest.mark.slow
def test_bf16_is_the_same_in_workers(federation):
    tasks = federation([12, 9, 7], (1, 6, 6), 3, "multi-class")
    model, params = network(), TrainingParams(batch_size=4)
    start = Layout.of(model).flatten(model.state_dict())
    objective = Objective(True, nn.Identity())
    alone = SequentialTrainer(model, objective, params, precision="bf16").train(start, tasks, 0.01, 0.0)
    with ProcessesTrainer(model, objective, params, workers=2, precision="bf16") as trainer:
        assert torch.equal(trainer.train(start, tasks, 0.01, 0.0).matrix, alone.matrix)
