from functools import partial

import pytest
import torch
from torch import nn

from wardround.errors import ConfigError
from wardround.training import ClientTask, Objective, SequentialTrainer, TrainingParams
from wardround.updates import Layout


def tint(batch, by):
    return batch + by


def flip(batch, generator):
    return batch.flip(3) if torch.rand((), generator=generator) < 0.5 else batch


def scale(batch):
    return batch / 2


def network(norm):
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(4, momentum=None if norm == "cumulative" else 0.1)] if norm else []
    # A bias before BatchNorm would have no gradient but rounding, which Adam blows up to steps of full size.
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=not norm),
        *middle,
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(4 * 16, 3),
    )


@pytest.mark.parametrize("norm", ["", "running", "cumulative"])
@pytest.mark.parametrize(
    "params",
    [
        TrainingParams(batch_size=4, epochs=2),
        TrainingParams(batch_size=4, weight_decay=0.1),
        TrainingParams(optimizer="sgd", batch_size=4, epochs=2, momentum=0.9, weight_decay=0.01),
        TrainingParams(optimizer="sgd", batch_size=4),
    ],
    ids=["adam", "adam-decay", "sgd-momentum-decay", "sgd"],
)
def test_it_is_plain_training(norm, params, federation, plain_train):
    model = network(norm).double()
    layout = Layout.of(model)
    objective = Objective(True, scale, flip)
    tasks = federation([13, 9, 5], (2, 6, 6), 3, "multi-class", dtype=torch.float64)
    own = torch.randn(layout.size, dtype=torch.float64).abs() * 0.1
    tasks[1] = ClientTask("own", tasks[1].data, 5, weights=own, transform=partial(tint, by=0.3))
    correction = torch.randn(layout.size, dtype=torch.float64)
    tasks[2] = ClientTask("corrected", tasks[2].data, 6, correction=correction, stealth=0.4)
    start = layout.flatten(model.state_dict())
    trainer = SequentialTrainer(model, objective, params)
    trainer.train(start, tasks, 0.1, 0.0)  # a round before must leave no trace
    for prox_mu in (0.0, 0.5):
        out = trainer.train(start, tasks, 0.01, prox_mu)
        rows, losses = plain_train(model, objective, params, start, tasks, 0.01, prox_mu)
        assert ((out.matrix - rows).norm(dim=1) / rows.norm(dim=1)).max() < 1e-8
        assert torch.allclose(out.loss, losses, rtol=1e-9)
    if norm:  # statistics are part of the row
        statistics = layout.slices["1.running_mean"]
        assert (out.matrix[:, statistics] != 0).all()


def test_single_samples_at_the_end_are_left_out_of_batch_norm(federation, plain_train, objective):
    model = network("running")
    tasks = federation([9], (2, 6, 6), 3, "multi-class")
    params = TrainingParams(batch_size=4)
    start = Layout.of(model).flatten(model.state_dict())
    out = SequentialTrainer(model, objective("multi-class"), params).train(start, tasks, 0.01, 0.0)
    rows, _ = plain_train(model, objective("multi-class"), params, start, tasks, 0.01)
    assert torch.allclose(out.matrix, rows, rtol=1e-3, atol=1e-6)


def test_neither_model_nor_global_state_is_touched(federation, objective):
    model = network("running").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tasks = federation([9, 8], (2, 6, 6), 3, "multi-class")
    start = Layout.of(model).flatten(model.state_dict())
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    SequentialTrainer(model, objective("multi-class"), TrainingParams()).train(start, tasks, 0.01, 0.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_layers_stay_and_tied_layers_move_together(federation, objective):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    model[4] = nn.Sequential(model[2], nn.Linear(4, 1))
    layout = Layout.of(model)
    start = layout.flatten(model.state_dict())
    trainer = SequentialTrainer(model, objective("binary"), TrainingParams())
    moved = layout.unflatten(trainer.train(start, federation([20], (4,)), 0.01, 0.0).matrix[0])
    assert not moved["0.weight"].any()
    assert moved["2.weight"].any()
    assert torch.equal(moved["2.weight"], moved["4.0.weight"])


def test_parameters_of_several_types_are_refused(objective):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1).double())
    with pytest.raises(ConfigError, match="one floating-point type"):
        SequentialTrainer(model, objective("binary"), TrainingParams())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_updates(federation, objective):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    tasks = federation([13, 9], (2, 6, 6), 3, "multi-class")
    start = Layout.of(model).flatten(model.state_dict())
    params = TrainingParams(optimizer="sgd")
    here = SequentialTrainer(model, objective("multi-class"), params).train(start, tasks, 0.05, 0.0)
    there = SequentialTrainer(model, objective("multi-class"), params, torch.device("cuda"))
    rows = there.train(start, tasks, 0.05, 0.0).matrix
    assert rows.device.type == "cpu"
    assert ((rows - here.matrix).norm() / here.matrix.norm()) < 1e-2


def test_bf16_is_coarser_but_the_weights_stay_float32(federation):
    """Two runs agree to the last bit; they are near those in float32, and not the same."""
    model = network("running")
    objective, params = Objective(True, scale), TrainingParams(optimizer="sgd", batch_size=4, epochs=2)
    tasks = federation([13, 9], (2, 6, 6), 3, "multi-class")
    start = Layout.of(model).flatten(model.state_dict())

    def trained(precision):
        return SequentialTrainer(model, objective, params, precision=precision).train(start, tasks, 0.1, 0.0)

    coarse, again, exact = trained("bf16"), trained("bf16"), trained("float32")
    assert torch.equal(coarse.matrix, again.matrix)
    assert torch.equal(coarse.loss, again.loss)
    assert coarse.matrix.dtype == torch.float32
    assert not torch.equal(coarse.matrix, exact.matrix)
    assert torch.allclose(coarse.matrix, exact.matrix, atol=0.05)
    assert not torch.equal(coarse.matrix, coarse.matrix.bfloat16().float()), "steps finer than bf16 are kept"


def test_without_bf16_training_is_what_it_was(federation, plain_train):
    """`precision` has a default, and that is float32: the textbook's training to the last digits."""
    model = network("")
    params = TrainingParams(optimizer="sgd", batch_size=4)
    assert params.precision == "float32"
    assert "precision" not in params.non_default()
    tasks = federation([13, 9], (2, 6, 6), 3, "multi-class")
    start = Layout.of(model).flatten(model.state_dict())
    matrix, _ = plain_train(model, Objective(True, scale), params, start, tasks, 0.1)
    out = SequentialTrainer(model, Objective(True, scale), params).train(start, tasks, 0.1, 0.0)
    assert torch.allclose(out.matrix, matrix, atol=1e-6)
