"""Server optimisers against their formulas, in a run, and across a restart."""

import numpy as np
import pytest
import torch
from stopped_runs import run_stopped_after_three

from wardround.errors import ConfigError
from wardround.federation.server_optimizer import ServerOptimizer, ServerParams
from wardround.runs.config import load_config
from wardround.runs.runner import run
from wardround.updates import Layout

LAYOUT = Layout(("w", "bn.running_mean"), ((3,), (2,)))


def by_formula(kind, deltas, lr, beta1, beta2, tau):
    m, v, steps = np.zeros(5), np.full(5, tau**2), []
    for delta in deltas:
        if kind == "momentum":
            m = beta1 * m + delta
            step = lr * m
        else:
            m = beta1 * m + (1 - beta1) * delta
            square = delta**2
            v = (
                beta2 * v + (1 - beta2) * square
                if kind == "adam"
                else v - (1 - beta2) * square * np.sign(v - square)
            )
            step = lr * m / (np.sqrt(v) + tau)
        step[3:] = delta[3:]  # running statistics are averaged
        steps.append(step)
    return steps


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_against_the_formula(kind):
    deltas = np.random.default_rng(0).normal(size=(6, 5))
    params = ServerParams(optimizer=kind, lr=0.3, beta1=0.8, beta2=0.95, tau=0.01)
    optimizer = ServerOptimizer(params, LAYOUT)
    for delta, expected in zip(deltas, by_formula(kind, deltas, 0.3, 0.8, 0.95, 0.01), strict=True):
        np.testing.assert_allclose(optimizer.step(torch.from_numpy(delta)).numpy(), expected, rtol=1e-12)


def test_adam_is_that_of_flower():
    strategy = pytest.importorskip("flwr.server.strategy.fedadam", reason="Flower is not installed")
    common = pytest.importorskip("flwr.common")
    start = [np.zeros(3), np.zeros(2)]
    theirs = strategy.FedAdam(
        initial_parameters=common.ndarrays_to_parameters(start), eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3
    )
    assert (theirs.beta_1, theirs.beta_2, theirs.tau) == (0.9, 0.99, 1e-3)
    defaults = ServerParams()
    assert (defaults.beta1, defaults.beta2, defaults.tau) == (0.9, 0.99, 1e-3)


def test_plain_steps_are_as_ever():
    optimizer = ServerOptimizer(ServerParams(), LAYOUT, server_lr=0.5)
    assert optimizer.step(torch.ones(5)).tolist() == [0.5] * 5
    assert optimizer.state_dict() == {}


def test_default_rates():
    assert ServerOptimizer(ServerParams(optimizer="momentum"), LAYOUT).lr == 1
    assert ServerOptimizer(ServerParams(optimizer="yogi"), LAYOUT).lr == 0.01


@pytest.mark.parametrize(
    "server", [{"optimizer": "momentum", "lr": 0.5}, {"optimizer": "adam"}, {"optimizer": "yogi"}]
)
def test_a_run_that_is_stopped_ends_with_the_same_bytes(tiny, server, tmp_path, monkeypatch):
    config = load_config({**tiny, "server": server, "training": {"client_momentum": 0.9, "steps": 2}})
    straight = run(config, tmp_path / "straight")
    resumed = run_stopped_after_three(config, tmp_path / "stopped")
    assert resumed.summary().final == straight.summary().final
    weights = [folder.read_checkpoint()["federation"]["weights"] for folder in (straight, resumed)]
    assert torch.equal(*weights)
    plain = run(load_config(tiny), tmp_path / "plain")
    assert not torch.equal(plain.read_checkpoint()["federation"]["weights"], weights[0])


def test_two_learning_rates_are_refused(tiny):
    with pytest.raises(ConfigError, match=r"give server\.lr or server_lr, not both"):
        load_config({**tiny, "server_lr": 0.5, "server": {"lr": 0.1}})
    with pytest.raises(ConfigError, match=r"adam takes server\.lr, not server_lr"):
        load_config({**tiny, "server_lr": 0.5, "server": {"optimizer": "adam"}})
    assert load_config({**tiny, "server": {"optimizer": "sgd"}}).hash == load_config(tiny).hash
