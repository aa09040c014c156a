import pytest
import torch
from hypothesis import given
from tests.training.dense_cases import SHARED, cases, compare_steps, relative, run_case, survival_tasks
from torch import nn

from wardround import aggregators
from wardround.training import ClientData, ClientTask, Objective, SequentialTrainer, TrainingParams
from wardround.training import prepared_inputs as prepared_module
from wardround.training import vectorized as vectorized_module
from wardround.training.vectorized import VectorizedTrainer
from wardround.updates import Layout, Updates


def halve(batch):
    return batch.float() / 2 - 0.1


def run_vectorized(case, federation, plain_train, monkeypatch, dtype):
    model, options = case[3], case[-1]
    monkeypatch.setattr(vectorized_module, "GROUP_WEIGHTS", options["group"] * Layout.of(model).size)
    monkeypatch.setattr(vectorized_module, "WINDOW_VALUES", options["window"])
    return run_case(case, VectorizedTrainer, federation, plain_train, dtype)


@pytest.mark.slow
@given(case=cases())
@SHARED
def test_it_is_plain_training_to_the_last_digits(case, federation, plain_train):
    # In double precision nothing but a different formula could make a difference of this size.
    with pytest.MonkeyPatch.context() as patch:
        out, (rows, losses), _ = run_vectorized(case, federation, plain_train, patch, torch.float64)
    assert relative(out.matrix, rows) < 1e-8
    assert torch.allclose(out.loss, losses, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_so_many_steps_are_plain_training_too(optimizer, steps, federation, objective, plain_train):
    def layers():
        return nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)

    compare_steps(VectorizedTrainer, layers, optimizer, steps, federation, objective, plain_train)


@pytest.mark.slow
@given(case=cases())
@SHARED
def test_it_is_plain_training_in_single_precision(case, federation, plain_train):
    with pytest.MonkeyPatch.context() as patch:
        out, (rows, losses), lengths = run_vectorized(case, federation, plain_train, patch, torch.float32)
    # A row is a difference of weights: below the weights' own last digits there is nothing to agree on.
    last_digits = 8 * torch.finfo(torch.float32).eps * lengths
    assert ((out.matrix - rows).norm(dim=1) <= 1e-5 * rows.norm(dim=1) + last_digits).all()
    assert torch.allclose(out.loss, losses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 0.001), ("sgd", 0.05)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_realistic_round_agrees_with_the_sequential_engine(optimizer, lr, epochs, federation, objective):
    sizes = [700 // k for k in range(1, 11)]
    tasks = federation(sizes, (40,))
    model = nn.Sequential(
        nn.Linear(40, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    params = TrainingParams(optimizer=optimizer, epochs=epochs, momentum=0.5)
    start = Layout.of(model).flatten(model.state_dict())
    fast = VectorizedTrainer(model, objective("binary"), params).train(start, tasks, lr, 0.01)
    slow = SequentialTrainer(model, objective("binary"), params).train(start, tasks, lr, 0.01)
    assert relative(fast.matrix, slow.matrix) < 1e-5
    assert torch.allclose(fast.loss, slow.loss, rtol=1e-5)


def test_tiny_gradients_do_not_break_the_agreement(federation, objective, plain_train):
    # Adam divides by √v + ε: columns of inputs far below ε have gradients of their size.
    tasks = federation([50, 33, 8], (12,))
    scales = torch.logspace(-12, 0, 12)
    tasks = [
        ClientTask(t.client, ClientData(tasks[0].data.inputs * scales, t.data.rows, t.data.targets), t.seed)
        for t in tasks
    ]
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
    start, params = Layout.of(model).flatten(model.state_dict()), TrainingParams(epochs=3)
    out = VectorizedTrainer(model, objective("binary"), params).train(start, tasks, 0.001, 0.0)
    rows, _ = plain_train(model, objective("binary"), params, start, tasks, 0.001)
    assert relative(out.matrix, rows) < 1e-5


def test_neither_threads_nor_the_order_of_clients_change_a_bit(federation, objective):
    tasks = federation([90, 40, 40, 7, 3], (10,))
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    start = Layout.of(model).flatten(model.state_dict())
    trainer = VectorizedTrainer(model, objective("binary"), TrainingParams())
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(trainer.train(start, tasks, 0.01, 0.0).matrix)
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*results)
    backwards = trainer.train(start, tasks[::-1], 0.01, 0.0).matrix.flip(0)
    assert torch.equal(results[0], backwards)


def test_samples_are_prepared_once_and_again_when_they_change(federation, monkeypatch):
    calls = []

    def prepare(batch):
        calls.append(len(batch))
        return halve(batch)

    tasks = federation([20, 10], (4,))
    model = nn.Sequential(nn.Linear(4, 1))
    start = Layout.of(model).flatten(model.state_dict())
    trainer = VectorizedTrainer(model, Objective(False, prepare), TrainingParams())
    first = trainer.train(start, tasks, 0.01, 0.0).matrix
    before = len(calls)
    assert torch.equal(trainer.train(start, tasks, 0.01, 0.0).matrix, first)
    assert len(calls) == before
    tasks[0].data.inputs.mul_(2)
    assert not torch.equal(trainer.train(start, tasks, 0.01, 0.0).matrix, first)
    assert len(calls) > before
    tasks[0].data.inputs.div_(2)
    monkeypatch.setattr(prepared_module, "KEPT_BYTES", 10)  # no room: prepare each time, with the same result
    assert torch.allclose(trainer.train(start, tasks, 0.01, 0.0).matrix, first, rtol=1e-5, atol=1e-8)


def test_room_for_prepared_samples_is_bounded(federation, objective, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 1))
    trainer = VectorizedTrainer(model, objective("binary"), TrainingParams())
    start = Layout.of(model).flatten(model.state_dict())
    monkeypatch.setattr(prepared_module, "KEPT_BYTES", 2 * 30 * 5 * 4)
    for seed in range(5):
        trainer.train(start, federation([20, 10], (4,), seed=seed), 0.01, 0.0)
    assert len(trainer.prepared._kept) == 2
    trainer.close()
    assert not trainer.prepared._kept


def test_rounds_of_growing_and_shrinking_size_share_buffers(federation, objective, plain_train):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    params = TrainingParams(
        batch_size=1000
    )  # whole clients at once: room is made for what there is, not more
    start = Layout.of(model).flatten(model.state_dict())
    trainer = VectorizedTrainer(model, objective("binary"), params)
    for sizes in ([5, 3], [40, 2], [3, 3, 3, 3], [200], [1]):
        tasks = federation(sizes, (4,))
        out = trainer.train(start, tasks, 0.01, 0.0)
        rows, _ = plain_train(model, objective("binary"), params, start, tasks, 0.01)
        assert relative(out.matrix, rows) < 1e-5
    assert trainer.buffers.clients == 4
    assert trainer.buffers.samples == 200


def test_a_round_without_clients_is_an_empty_matrix(objective):
    model = nn.Sequential(nn.Linear(4, 1))
    out = VectorizedTrainer(model, objective("binary"), TrainingParams()).train(torch.zeros(5), [], 0.1, 0.0)
    assert out.matrix.shape == (0, 5)
    assert out.loss.shape == (0,)


@pytest.mark.parametrize("outcomes", [None, 2])
@pytest.mark.parametrize("own_start", [False, True])
@pytest.mark.parametrize("steps", [None, 1])
def test_what_is_on_a_device_stays_there(outcomes, own_start, steps, federation, objective):
    """Torch's `meta` device has shapes but no numbers: whatever were brought back from it to the host would fail."""
    tasks = federation([90, 40, 7], (10,))
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    start, device = Layout.of(model).flatten(model.state_dict()), torch.device("meta")
    if own_start:
        tasks[0] = ClientTask(tasks[0].client, tasks[0].data, 1, weights=start, correction=start, stealth=0.1)
    trainer = VectorizedTrainer(model, objective("binary"), TrainingParams(steps=steps), device)
    out = trainer.train(start.to(device), tasks, 0.01, 0.1, outcomes)
    assert out.matrix.shape == (3, len(start))
    assert out.matrix.device == out.loss.device == device
    assert outcomes is None or (out.parts.shape, out.parts.device) == ((3, outcomes, len(start)), device)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
@pytest.mark.parametrize("rule", ["fedavg", "median", "rfa", "krum"])
def test_a_round_is_aggregated_where_it_was_trained(rule, device, federation, objective):
    tasks = federation([90, 40, 40, 30, 7], (10,))
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    start, where = Layout.of(model).flatten(model.state_dict()).to(device), torch.device(device)
    trainer = VectorizedTrainer(model, objective("binary"), TrainingParams(), where)
    trained = trainer.train(start, tasks, 0.01, 0.0)
    settings = {"f": 1} if rule == "krum" else {}
    delta = aggregators.create(rule, **settings).aggregate(Updates(trained.matrix)).delta
    assert trained.matrix.device.type == delta.device.type == device
    expected = aggregators.create(rule, **settings).aggregate(Updates(trained.matrix.cpu())).delta
    torch.testing.assert_close(delta.cpu(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_updates(federation, objective):
    tasks = federation([90, 40, 7], (10,))
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    start = Layout.of(model).flatten(model.state_dict())
    here = VectorizedTrainer(model, objective("binary"), TrainingParams()).train(start, tasks, 0.01, 0.0)
    there = VectorizedTrainer(model, objective("binary"), TrainingParams(), torch.device("cuda")).train(
        start, tasks, 0.01, 0.0
    )
    assert there.matrix.device.type == "cpu"
    assert relative(there.matrix, here.matrix) < 1e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", [{"epochs": 2}, {"steps": 1}, {"steps": 9}])
def test_the_cox_loss_is_plain_training_too(optimizer, schedule, federation, plain_train):
    """Batches of several sizes in one step, ties, batches without an event, and clients of one patient."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1, bias=False)
    ).double()  # a bias has no gradient but rounding
    tasks = survival_tasks(federation)
    params = TrainingParams(optimizer=optimizer, batch_size=4, **schedule)
    start = Layout.of(model).flatten(model.state_dict())
    objective = Objective(False, lambda x: x, survival=True)
    out = VectorizedTrainer(model, objective, params).train(start, tasks, 0.01, 0.0)
    rows, losses = plain_train(model, objective, params, start, tasks, 0.01)
    assert out.matrix.abs().sum(1)[:2].min() > 0
    assert torch.allclose(out.matrix, rows, rtol=1e-6, atol=1e-8)
    assert torch.allclose(out.loss, losses, rtol=1e-9, atol=1e-12)
