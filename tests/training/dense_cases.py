"""Random networks of dense layers, clients and options: what the engines for them are tried on."""

from functools import partial

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import nn

from wardround.training import ClientData, ClientTask, Objective, TrainingParams
from wardround.updates import Layout

SHARED = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def shift(batch, by):
    return batch * (1 + by) + by


def jitter(batch, generator):
    return batch + 0.1 * torch.randn(batch.shape, generator=generator, dtype=batch.dtype)


def relative(rows, reference):
    return ((rows - reference).norm(dim=1) / reference.norm(dim=1).clamp_min(1e-12)).max().item()


@st.composite
def networks(draw, outputs):
    shape = draw(st.sampled_from([(3,), (7,), (2, 3), (20,)]))
    size = torch.Size(shape).numel()
    layers = [nn.Flatten()] if len(shape) > 1 else []
    if draw(st.booleans()):
        layers.append(nn.Dropout(draw(st.sampled_from([0.0, 0.25]))))
    for width in draw(st.lists(st.integers(1, 24), max_size=3)):
        layers.append(nn.Linear(size, width, bias=draw(st.booleans())))
        after = [nn.ReLU(), nn.Dropout(draw(st.sampled_from([0.1, 0.5]))), nn.Dropout(0.3)]
        layers += draw(st.sampled_from([[], after[:1], after[:2], after[1:2], after[1::-1], after]))
        size = width
    torch.manual_seed(draw(st.integers(0, 100)))
    return shape, nn.Sequential(*layers, nn.Linear(size, outputs, bias=draw(st.booleans())))


@st.composite
def cases(draw):
    task = draw(st.sampled_from(["binary", "multi-label", "multi-class"]))
    outputs = 1 if task == "binary" else draw(st.integers(2, 5))
    shape, model = draw(networks(outputs))
    params = TrainingParams(
        optimizer=draw(st.sampled_from(["adam", "sgd"])),
        batch_size=draw(st.integers(1, 9)),
        epochs=draw(st.integers(1, 3)),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.01])),
    )
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    options = {
        "prox_mu": draw(st.sampled_from([0.0, 0.1])),
        "group": draw(st.sampled_from([1, 2, 100])),
        "window": draw(st.sampled_from([1, 50, 10_000])),
        "own_start": draw(st.sets(st.integers(0, 5))),
        "drifting": draw(st.sets(st.integers(0, 5))),
        "stealthy": draw(st.sets(st.integers(0, 5))),
        "corrected": draw(st.sets(st.integers(0, 5))),
        "poisoned": draw(st.sets(st.integers(0, 5))),
        "other_inputs": draw(st.sets(st.integers(0, 5))),
        "seed": draw(st.integers(0, 1000)),
        "augment": draw(st.sampled_from([None, jitter])),
    }
    return task, outputs, shape, model, params, sizes, options


def changed(task, number, size, options):
    """Give some clients a start, a drift, targets or inputs of their own."""
    data, generator = task.data, torch.Generator().manual_seed(number)
    if number in options["poisoned"]:
        data = ClientData(data.inputs, data.rows, data.targets.flip(0))
    if number in options["other_inputs"]:
        data = ClientData(data.inputs * 0.5, data.rows, data.targets)
    weights = torch.randn(size, generator=generator, dtype=data.inputs.dtype) * 0.3
    return ClientTask(
        task.client,
        data,
        task.seed,
        weights=weights if number in options["own_start"] else None,
        transform=partial(shift, by=0.1 * (number + 1)) if number in options["drifting"] else None,
        stealth=0.3 if number in options["stealthy"] else 0.0,
        correction=weights.flip(0) if number in options["corrected"] else None,
    )


def run_case(case, engine, federation, plain_train, dtype):
    """One round of an engine after another round, the same trained plainly, and the norms of the clients' starts."""
    kind, outputs, shape, model, params, sizes, options = case
    model = model.to(dtype)
    layout = Layout.of(model)
    objective = Objective(kind == "multi-class", lambda x: x, options["augment"])
    tasks = federation(sizes, shape, outputs, kind, options["seed"], dtype)
    tasks = [changed(task, i, layout.size, options) for i, task in enumerate(tasks)]
    start = layout.flatten(model.state_dict())
    trainer = engine(model, objective, params)
    trainer.train(start, tasks, 0.05, options["prox_mu"])  # a round before must leave no trace
    out = trainer.train(start, tasks, 0.01, options["prox_mu"])
    reference = plain_train(model, objective, params, start, tasks, 0.01, options["prox_mu"])
    assert out.matrix.dtype == dtype
    starts = [start if task.weights is None else task.weights for task in tasks]
    return out, reference, torch.stack([weights.norm() for weights in starts])


def survival_tasks(federation):
    """Clients of several sizes: ties, batches without an event, and a client of one patient."""
    tasks = []
    for number, task in enumerate(federation([30, 9, 3, 1], (4,), 1, "binary", 5, torch.float64)):
        generator = torch.Generator().manual_seed(number)
        times = torch.randint(0, 12, (len(task.data),), generator=generator).double() / 3
        events = torch.rand(len(task.data), generator=generator) < 0.6
        targets = torch.where(events, times, -times)
        tasks.append(
            ClientTask(task.client, ClientData(task.data.inputs, task.data.rows, targets), task.seed)
        )
    return tasks


def compare_steps(engine, layers, optimizer, steps, federation, objective, plain_train):
    """Assert that so many steps per round, whatever a client's number of samples, are plain training."""
    torch.manual_seed(0)
    model = nn.Sequential(*layers()).double()
    tasks = federation([30, 9, 3, 1], (4,), 1, "binary", 5, torch.float64)
    params = TrainingParams(optimizer=optimizer, batch_size=4, steps=steps, momentum=0.5)
    start = Layout.of(model).flatten(model.state_dict())
    out = engine(model, objective("binary"), params).train(start, tasks, 0.01, 0.0)
    rows, losses = plain_train(model, objective("binary"), params, start, tasks, 0.01)
    assert relative(out.matrix, rows) < 1e-8
    assert torch.allclose(out.loss, losses, rtol=1e-9, atol=1e-12)
