import pytest
import torch
from torch import nn

from wardround.errors import ConfigError
from wardround.experiments import load_config, run
from wardround.privacy.accounting import Ledger
from wardround.privacy.noise import SystemNoise
from wardround.privacy.params import DpParams
from wardround.training.base import ClientData, ClientTask, Objective, TrainingParams
from wardround.training.dp_sgd import PatientTrainer, fit_for_patients
from wardround.updates import Layout

pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")


def task_of(n, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 4, generator=generator)
    return ClientTask("a", ClientData(inputs, torch.arange(n), (inputs[:, 0] > 0).long()), seed)


def trainer_of(network, dp, **training):
    params = TrainingParams(**{"optimizer": "sgd", "lr": 1.0, **training})
    return PatientTrainer(
        network, Objective(False, nn.Identity()), params, dp.get("clip", 1.0), dp["noise_multiplier"]
    )


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def weights_of(network):
    return Layout.of(network).flatten(network.state_dict()).clone()


@pytest.mark.slow
def test_without_noise_a_step_is_the_mean_of_clipped_gradients(network):
    """By hand: one gradient a sample, clipped, summed, over the batch size."""
    task, clip = task_of(6), 0.05
    trainer = trainer_of(network, {"noise_multiplier": 1e-12, "clip": clip}, batch_size=6)
    update = trainer.train(weights_of(network), [task], lr=1.0, prox_mu=0.0).matrix[0]
    by_hand = torch.zeros_like(update)
    for i in range(6):
        network.zero_grad()
        logits = network(task.data.inputs[i : i + 1])
        nn.functional.binary_cross_entropy_with_logits(
            logits[:, 0], task.data.targets[i : i + 1].float()
        ).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        by_hand -= gradient * min(1.0, clip / float(gradient.norm())) / 6
    assert update == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.slow
def test_noise_has_the_size_that_the_accountant_is_told(network):
    trainer = trainer_of(network, {"noise_multiplier": 3.0, "clip": 1e-6}, batch_size=5)
    tasks = [ClientTask("a", task_of(5).data, seed) for seed in range(600)]
    matrix = trainer.train(weights_of(network), tasks, lr=1.0, prox_mu=0.0).matrix
    assert matrix.std() == pytest.approx(3.0 * 1e-6 / 5, rel=0.05)


def test_training_repeats_with_its_seed_and_leaves_nothing_behind(network):
    trainer = trainer_of(network, {"noise_multiplier": 1.0}, batch_size=2, epochs=2)
    start = weights_of(network)
    one, two = task_of(7, 1), task_of(7, 2)
    together = trainer.train(start, [one, two], 0.1, 0.0)
    alone = trainer.train(start, [two], 0.1, 0.0)
    assert torch.equal(together.matrix[1], alone.matrix[0])
    assert not torch.equal(together.matrix[0], together.matrix[1])
    assert together.loss[1] == alone.loss[0] > 0


def test_a_step_in_which_nobody_is_drawn_is_noise(network):
    trainer = trainer_of(network, {"noise_multiplier": 1.0}, batch_size=1)
    tasks = [ClientTask("a", task_of(2).data, seed) for seed in range(20)]  # a quarter of the steps is empty
    updates = trainer.train(weights_of(network), tasks, 0.1, 0.0).matrix
    assert torch.isfinite(updates).all()
    assert (updates.norm(dim=1) > 0).all()


def test_the_proximal_term_pulls_back(network):
    start, task = weights_of(network), task_of(20)
    far, near = (
        trainer_of(network, {"noise_multiplier": 1e-12}, batch_size=5, epochs=20).train(
            start, [task], 0.5, mu
        )
        for mu in (0.0, 1.5)
    )
    assert near.matrix.norm() < 0.7 * far.matrix.norm()


def test_batch_norm_is_an_error_with_the_fix_and_the_fix_works():
    network = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 1))
    with pytest.raises(ConfigError, match=r"BatchNorm mixes.*privacy\.dp\.group_norm=true"):
        fit_for_patients(network, group_norm=False)
    fixed = fit_for_patients(network, group_norm=True)
    assert any(isinstance(layer, nn.GroupNorm) for layer in fixed.modules())
    assert not any(isinstance(layer, nn.BatchNorm1d) for layer in fixed.modules())


def test_a_model_without_gradients_by_patient_is_an_error():
    with pytest.raises(ConfigError, match="no gradient by patient"):
        fit_for_patients(nn.LSTM(3, 2), group_norm=False)


@pytest.mark.slow
def test_a_run_tells_its_epsilon_and_stops_at_its_budget(tmp_path):
    config = {
        "dataset": {"name": "synthetic", "samples": 600, "features": 6},
        "partition": {"name": "dirichlet", "clients": 4},
        "model": {"name": "mlp", "hidden": [8]},
        "privacy": {"dp": {"unit": "patient", "noise_multiplier": 1.0}},
        "rounds": 3,
    }
    folder = run(load_config(config), tmp_path)
    assert folder.config()["record"]["engine"] == "opacus"
    spent = [line.privacy["epsilon"] for line in folder.rounds()]
    by_hand = Ledger(1e-5)
    for line in folder.clients():
        n = line.num_samples
        by_hand.spend({line.client: (1.0, min(1.0, 32 / n), -(-n // 32))})
    assert spent[-1] == pytest.approx(by_hand.epsilon())
    config["privacy"]["dp"]["budget"] = (spent[0] + spent[1]) / 2
    assert run(load_config(config), tmp_path).summary().rounds == 1


def test_unit_patient_needs_its_multiplier():
    with pytest.raises(ValueError, match="noise_multiplier"):
        DpParams(unit="patient")
    with pytest.raises(ValueError, match="unit patient"):
        DpParams(group_norm=True)


class TestSystemNoise:
    """Deployments: batches and noise that nobody can repeat."""

    def trained(self, network, multiplier=3.0, tasks=1, clip=1.0, **training):
        params = TrainingParams(**{"optimizer": "sgd", "lr": 1.0, "batch_size": 5, **training})
        trainer = PatientTrainer(
            network, Objective(False, nn.Identity()), params, clip, multiplier, SystemNoise()
        )
        batch = [ClientTask("a", task_of(5).data, 0) for _ in range(tasks)]
        return trainer.train(weights_of(network), batch, lr=1.0, prox_mu=0.0).matrix

    @pytest.mark.slow
    def test_its_spread_is_what_the_accountant_is_told(self, network):
        matrix = self.trained(network, tasks=300, clip=1e-6)
        assert matrix.std() == pytest.approx(3.0 * 1e-6 / 5, rel=0.05)

    def test_no_two_calls_are_alike(self, network):
        one, other = (self.trained(network) for _ in range(2))
        assert not torch.equal(one, other)
        torch.manual_seed(0)
        seeded = self.trained(network)
        torch.manual_seed(0)
        assert not torch.equal(seeded, self.trained(network))

    def test_every_parameter_has_noise(self, network):
        assert (self.trained(network, tasks=3) != 0).all()

    def test_next_to_no_noise_leaves_the_mean_of_clipped_gradients(self, network):
        silent = self.trained(network, multiplier=1e-9, clip=0.05)[0]
        named = trainer_of(network, {"noise_multiplier": 1e-12, "clip": 0.05}, batch_size=5)
        task = ClientTask("a", task_of(5).data, 0)
        expected = named.train(weights_of(network), [task], lr=1.0, prox_mu=0.0).matrix[0]
        assert silent == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("system", [True, False])
def test_a_patient_with_an_infinite_gradient_counts_as_none(network, system):
    """Clipping bounds no such gradient: that the update is not finite would tell that the patient is there."""
    inputs = task_of(6).data.inputs.clone()
    inputs[3] = 1e30
    data = ClientData(inputs, torch.arange(6), torch.ones(6, dtype=torch.long))
    with torch.no_grad():  # a server's model whose logit for this patient overflows
        network[0].weight.fill_(1e20)
    relu = nn.Sequential(network[0], nn.ReLU(), network[2])
    params = TrainingParams(optimizer="sgd", lr=1.0, batch_size=6)
    source = SystemNoise() if system else None
    trainer = PatientTrainer(relu, Objective(False, nn.Identity()), params, 1.0, 1.0, source)
    update = trainer.train(weights_of(relu), [ClientTask("a", data, 0)], lr=1e-3, prox_mu=0.0).matrix[0]
    assert torch.isfinite(update).all()
