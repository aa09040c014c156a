"""The fused engine: plain training whatever the options, each client alone, and refused where it cannot run.

In double precision it has to be compiled once more, which takes ten seconds: those tests are slow.
"""

import pytest
import torch
from hypothesis import given
from tests.training.dense_cases import (
    SHARED,
    cases,
    changed,
    compare_steps,
    relative,
    run_case,
    survival_tasks,
)
from torch import nn

from wardround.training import Objective, SequentialTrainer, TrainingParams, make_trainer
from wardround.training.fused import FusedTrainer, trainer
from wardround.updates import Layout


def run_fused(case, federation, plain_train, dtype):
    options = case[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "GROUP_VALUES", {1: 1, 2: 500, 100: 16_000_000}[options["group"]])
        return run_case(case, FusedTrainer, federation, plain_train, dtype)


@pytest.mark.slow
@given(case=cases())
@SHARED
def test_it_is_plain_training_to_the_last_digits(case, federation, plain_train):
    # In double precision nothing but a different formula could make a difference of this size.
    out, (rows, losses), _ = run_fused(case, federation, plain_train, torch.float64)
    assert relative(out.matrix, rows) < 1e-8
    assert torch.allclose(out.loss, losses, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(case=cases())
@SHARED
def test_it_is_plain_training_in_single_precision(case, federation, plain_train):
    out, (rows, losses), lengths = run_fused(case, federation, plain_train, torch.float32)
    # A row is a difference of weights: below the weights' own last digits there is nothing to agree on.
    last_digits = 8 * torch.finfo(torch.float32).eps * lengths
    assert ((out.matrix - rows).norm(dim=1) <= 1e-5 * rows.norm(dim=1) + last_digits).all()
    assert torch.allclose(out.loss, losses, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 2, 15, 16, 17, 33, 48, 64, 65, 130])
def test_every_shape_of_tile_is_plain_training(outputs, federation, objective, plain_train):
    """Widths around whole registers and tiles, and batches of 1 to 13 samples."""
    torch.manual_seed(outputs)
    model = nn.Sequential(nn.Linear(outputs + 3, outputs), nn.ReLU(), nn.Linear(outputs, 3)).double()
    tasks = federation([27, 13, 1], (outputs + 3,), 3, "multi-class", outputs, torch.float64)
    params = TrainingParams(batch_size=13, epochs=2)
    start = Layout.of(model).flatten(model.state_dict())
    out = FusedTrainer(model, objective("multi-class"), params).train(start, tasks, 0.01, 0.0)
    rows, losses = plain_train(model, objective("multi-class"), params, start, tasks, 0.01)
    assert relative(out.matrix, rows) < 1e-8
    assert torch.allclose(out.loss, losses, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_so_many_steps_are_plain_training_too(optimizer, steps, federation, objective, plain_train):
    def layers():
        return nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1)

    compare_steps(FusedTrainer, layers, optimizer, steps, federation, objective, plain_train)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("schedule", [{"epochs": 2}, {"steps": 1}, {"steps": 9}, {"batch_size": 30}])
def test_the_cox_loss_is_plain_training_too(optimizer, schedule, federation, plain_train):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1, bias=False)
    ).double()  # a bias has no gradient but rounding
    tasks = survival_tasks(federation)
    params = TrainingParams(**{"optimizer": optimizer, "batch_size": 4, **schedule})
    start = Layout.of(model).flatten(model.state_dict())
    objective = Objective(False, lambda x: x, survival=True)
    out = FusedTrainer(model, objective, params).train(start, tasks, 0.01, 0.0)
    rows, losses = plain_train(model, objective, params, start, tasks, 0.01)
    assert out.matrix.abs().sum(1)[:2].min() > 0
    assert torch.allclose(out.matrix, rows, rtol=1e-6, atol=1e-8)
    assert torch.allclose(out.loss, losses, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 0.001), ("sgd", 0.05)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_realistic_round_agrees_with_the_sequential_engine(optimizer, lr, epochs, federation, objective):
    tasks = federation([700 // k for k in range(1, 11)], (40,))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    params = TrainingParams(optimizer=optimizer, epochs=epochs, momentum=0.5)
    start = Layout.of(model).flatten(model.state_dict())
    fast = FusedTrainer(model, objective("binary"), params).train(start, tasks, lr, 0.01)
    slow = SequentialTrainer(model, objective("binary"), params).train(start, tasks, lr, 0.01)
    assert relative(fast.matrix, slow.matrix) < 1e-5
    assert torch.allclose(fast.loss, slow.loss, rtol=1e-5)


@pytest.mark.slow
@given(case=cases())
@SHARED
def test_a_split_round_is_that_of_the_sequential_engine(case, federation):
    """Parts too, with masks, augmentation, corrections and own starts, in double precision."""
    kind, outputs, shape, model, params, sizes, options = case
    kind = "multi-class" if kind == "multi-label" else kind  # many labels are no single outcome
    outcomes = 2 if kind == "binary" else outputs
    model = model.double()
    layout = Layout.of(model)
    objective = Objective(kind == "multi-class", lambda x: x, options["augment"])
    tasks = federation(sizes, shape, outputs, kind, options["seed"], torch.float64)
    tasks = [changed(task, i, layout.size, options) for i, task in enumerate(tasks)]
    start = layout.flatten(model.state_dict())
    one, other = (
        engine(model, objective, params).train(start, tasks, 0.01, options["prox_mu"], outcomes)
        for engine in (SequentialTrainer, FusedTrainer)
    )
    assert relative(other.matrix, one.matrix) < 1e-8
    torch.testing.assert_close(other.parts, one.parts, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(other.parts.sum(1), other.matrix, rtol=1e-9, atol=1e-12)


def test_a_client_trains_as_if_alone(federation, objective):
    """Neither threads nor the number or order of clients change a bit."""
    tasks = federation([90, 40, 40, 7, 3], (10,))
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    start = Layout.of(model).flatten(model.state_dict())

    def train(tasks, workers):
        return FusedTrainer(model, objective("binary"), TrainingParams(), workers).train(
            start, tasks, 0.01, 0.0, 2
        )

    together = train(tasks, 1)
    for other in (train(tasks, 2), train(tasks, 9)):
        assert torch.equal(other.matrix, together.matrix)
        assert torch.equal(other.parts, together.parts)
        assert torch.equal(other.loss, together.loss)
    assert torch.equal(train(tasks[::-1], 1).matrix.flip(0), together.matrix)
    assert torch.equal(torch.cat([train([task], 1).matrix for task in tasks]), together.matrix)


def test_a_network_that_has_diverged_gives_no_numbers(federation, objective):
    """As every engine: validation drops such rows, and no finite ones may stand in for them."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    start = torch.full((Layout.of(model).size,), torch.nan)
    out = FusedTrainer(model, objective("binary"), TrainingParams()).train(
        start, federation([9], (4,)), 0.01, 0.0
    )
    assert out.matrix.isnan().all()
    assert out.loss.isnan().all()


@pytest.mark.slow
def test_large_logits_keep_their_loss(federation, objective, plain_train):
    for task, outputs in (("binary", 1), ("multi-class", 3)):
        tasks = federation([9, 4], (4,), outputs, task, 1, torch.float64)
        model = nn.Sequential(nn.Linear(4, outputs)).double()
        start = 1e4 * torch.ones(Layout.of(model).size, dtype=torch.float64).cumsum(0)
        params = TrainingParams(optimizer="sgd")
        out = FusedTrainer(model, objective(task), params).train(start, tasks, 0.01, 0.0)
        rows, losses = plain_train(model, objective(task), params, start, tasks, 0.01)
        assert torch.allclose(out.loss, losses, rtol=1e-9)
        assert torch.allclose(out.matrix, rows, atol=1e-8)


def test_a_round_without_clients_is_an_empty_matrix(objective):
    model = nn.Sequential(nn.Linear(4, 1))
    out = FusedTrainer(model, objective("binary"), TrainingParams()).train(torch.zeros(5), [], 0.1, 0.0)
    assert out.matrix.shape == (0, 5)
    assert out.loss.shape == (0,)


def test_without_numba_the_engine_is_another_and_its_name_says_so(objective, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))

    def make(engine="auto"):
        return make_trainer(model, objective("binary"), TrainingParams(), engine, "cpu")

    assert make().engine == "fused"
    monkeypatch.setattr(trainer, "can_compile", lambda: False)
    assert make().engine == "vectorized"
    with pytest.raises(
        Exception, match=r"needs numba \(pip install 'wardround\[fast\]'\); engines that can: auto, vec"
    ):
        make("fused")
