"""Updates split by outcome: parts add up, engines agree, and each part is what its samples contributed."""

import pytest
import torch
from torch import nn

from wardround.training.base import ClientData, ClientTask, Objective, TrainingParams, bias_reach
from wardround.training.fused import FusedTrainer
from wardround.training.processes import ProcessesTrainer, why_no_processes
from wardround.training.sequential import SequentialTrainer
from wardround.training.vectorized import VectorizedTrainer
from wardround.updates import Layout

SIZES = ((0, 100), (100, 107), (107, 170), (170, 300))


def network(outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, outputs))


def tasks(outcomes):
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(300, 5, generator=generator),
        torch.randint(0, outcomes, (300,), generator=generator),
    )
    return [
        ClientTask(f"c{i}", ClientData(inputs, torch.arange(first, last), targets[first:last]), seed=i)
        for i, (first, last) in enumerate(SIZES)
    ]


def train(engine, outcomes, prox_mu=0.0, split=True, **params):
    outputs = 1 if outcomes == 2 else outcomes
    model = network(outputs)
    params = TrainingParams(**{"lr": 0.05, "batch_size": 16, "epochs": 2, **params})
    weights = Layout.of(model).flatten(model.state_dict())
    trainer = engine(model, Objective(outputs > 1, nn.Identity()), params)
    with trainer:
        return trainer.train(weights, tasks(outcomes), params.lr, prox_mu, outcomes if split else None)


SETTINGS = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adam", "lr": 0.001},
    {"optimizer": "adam", "lr": 0.001, "weight_decay": 0.01},
]


@pytest.mark.parametrize("prox_mu", [0.0, 0.1])
@pytest.mark.parametrize("outcomes", [2, 3])
@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("engine", [VectorizedTrainer, FusedTrainer])
def test_parts_add_up_and_engines_agree(engine, params, outcomes, prox_mu):
    one, other = (
        train(SequentialTrainer, outcomes, prox_mu, **params),
        train(engine, outcomes, prox_mu, **params),
    )
    longest = one.parts.norm(dim=2).max()
    for trained in (one, other):
        assert trained.parts.shape == (4, outcomes, trained.matrix.shape[1])
        assert (trained.parts.sum(1) - trained.matrix).norm() <= 1e-6 * longest
    if params["optimizer"] == "adam":
        # Where outcomes cancel, Adam divides their parts by what rounding leaves of the gradient.
        close = torch.isclose(one.parts, other.parts, rtol=1e-2, atol=1e-5)
        assert close.double().mean() > 0.95
    else:
        assert (one.parts - other.parts).norm() <= 1e-4 * longest


@pytest.mark.parametrize("engine", [SequentialTrainer, VectorizedTrainer, FusedTrainer])
@pytest.mark.parametrize("params", SETTINGS)
def test_splitting_changes_no_update(engine, params):
    split, whole = (train(engine, 2, split=split, **params) for split in (True, False))
    torch.testing.assert_close(split.matrix, whole.matrix, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split.loss, whole.loss)
    assert whole.parts is None


@pytest.mark.skipif(why_no_processes() is not None, reason=str(why_no_processes()))
def test_worker_processes_give_the_same_bits():
    side_by_side = train(lambda *a: ProcessesTrainer(*a, workers=2), 2, optimizer="sgd")
    one_by_one = train(SequentialTrainer, 2, optimizer="sgd")
    assert torch.equal(side_by_side.parts, one_by_one.parts)


def test_a_single_step_of_sgd_is_the_gradient_of_each_outcome():
    trained = train(SequentialTrainer, 2, optimizer="sgd", batch_size=300, epochs=1)
    model, task = network(1), tasks(2)[3]
    inputs, targets = task.data.inputs[task.data.rows], task.data.targets
    losses = nn.functional.binary_cross_entropy_with_logits(
        model(inputs)[:, 0], targets.float(), reduction="none"
    )
    for outcome in (0, 1):
        share = losses[targets == outcome].sum() / len(targets)
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(share, model.parameters(), retain_graph=True)]
        )
        torch.testing.assert_close(trained.parts[3, outcome], -0.05 * gradient, rtol=1e-4, atol=1e-7)


def test_statistics_of_batch_norm_are_split_by_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    layout = Layout.of(model)
    params = TrainingParams(optimizer="sgd", lr=0.05, batch_size=16)
    trained = SequentialTrainer(model, Objective(False, nn.Identity()), params).train(
        layout.flatten(model.state_dict()), tasks(2)[:1], 0.05, 0.0, 2
    )
    place = layout.slices["1.running_mean"]
    share = (tasks(2)[0].data.targets == 0).double().mean().float()
    torch.testing.assert_close(trained.parts[0, 0, place], share * trained.matrix[0, place])
    torch.testing.assert_close(trained.parts.sum(1), trained.matrix)


@pytest.mark.parametrize("params", SETTINGS)
def test_no_training_moves_a_bias_beyond_its_reach(params):
    """And patients of an outcome raise their own logit, whatever the optimiser."""
    trained = train(SequentialTrainer, 2, **params)
    params = TrainingParams(**{"lr": 0.05, "batch_size": 16, "epochs": 2, **params})
    counts = torch.stack([torch.bincount(task.data.targets, minlength=2) for task in tasks(2)]).double()
    reach = bias_reach(params, counts, counts.sum(1), params.lr)
    steps = trained.parts[:, :, -1].double() * torch.tensor([-1.0, 1.0])
    assert (steps <= reach).all()
    if not params.weight_decay:
        assert (steps >= 0).all()


@pytest.mark.parametrize("samples", [11, 33, 48])
@pytest.mark.parametrize("limits", [{"epochs": 2}, {"epochs": 1, "steps": 5}])
def test_a_small_last_batch_moves_a_bias_further_and_no_further_than_its_reach(samples, limits):
    """Of a model that is sure of the wrong outcome, so that every patient pushes as hard as one can."""
    model = nn.Sequential(nn.Linear(3, 1))
    layout = Layout.of(model)
    weights = torch.tensor([0.0, 0, 0, -1e6])
    inputs, targets = torch.zeros(samples, 3), (torch.arange(samples) < 4).long()
    data = ClientData(inputs, torch.arange(samples), targets)
    params = TrainingParams(optimizer="sgd", lr=0.05, batch_size=16, **limits)
    trainer = SequentialTrainer(model, Objective(False, nn.Identity()), params)
    clients = [ClientTask(f"client-{seed}", data, seed=seed) for seed in range(40)]
    steps = trainer.train(
        layout.flatten({"0.weight": weights[None, :3], "0.bias": weights[3:]}), clients, 0.05, 0.0, 2
    )
    own = steps.parts[:, 1, -1].double()
    reach = bias_reach(params, torch.tensor([[samples - 4.0, 4.0]]), torch.tensor([float(samples)]), 0.05)[
        0, 1
    ]
    assert (own <= reach / 1.1 * (1 + 1e-6)).all()
    if samples == 33:
        assert own.std() > 0  # it depends on who is alone in the last batch
