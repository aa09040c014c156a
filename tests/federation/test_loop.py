"""The round loop on small networks: what moves, what stays at home, who sees what."""

import pytest
import torch
from torch import nn

from wardround import aggregators, attacks, datasets
from wardround.datasets import partition
from wardround.federation import Federation, Schedule, simulated_federation
from wardround.federation.clients import FinishedModel
from wardround.federation.model_factory import objective_of
from wardround.privacy.params import PrivacyParams
from wardround.randomness import seed_for
from wardround.records import LeftOut
from wardround.training import ClientData, ClientTask, SequentialTrainer, TrainingParams


def network(batch_norm: bool) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.ReLU(), nn.Linear(8, 1))


def federation(rule="fedavg", batch_norm=False, campaign=None, privacy=None, **schedule) -> Federation:
    dataset = datasets.create("synthetic", samples=300, features=6).load(0)
    assignment = partition.create("iid", clients=4).assign(dataset.train, dataset.test, 0)
    model, training = network(batch_norm), TrainingParams(lr=0.01)
    return simulated_federation(
        dataset,
        assignment,
        model,
        aggregators.create(rule),
        campaign or attacks.Campaign(attacks.create("none"), frozenset()),
        SequentialTrainer(model, objective_of(dataset), training),
        training,
        Schedule(**{"rounds": 5, **schedule}),
        privacy,
    )


def test_a_round_of_fedavg_by_hand():
    """Train each client alone with the same seeds; the model must move by their mean weighted by size."""
    fed = federation()
    start = fed.weights.clone()
    dataset = fed.server_data.dataset
    trainer = SequentialTrainer(network(False), objective_of(dataset), fed.training)
    rows = []
    for client, member in fed.clients.members.items():
        index = member.data.rows
        data = ClientData(dataset.train.inputs, index, dataset.train.targets[index])
        task = ClientTask(client, data, seed_for(0, "train", 1, client))
        rows.append((len(data), trainer.train(start, [task], 0.01, 0.0).matrix[0]))
    expected = sum(n * row.double() for n, row in rows) / sum(n for n, _ in rows)
    fed.step(1)
    torch.testing.assert_close((fed.weights - start).double(), expected, rtol=1e-4, atol=1e-7)


def test_the_server_learning_rate_scales_the_step():
    whole, half = federation(), federation(server_lr=0.5)
    start = whole.weights.clone()
    whole.step(1)
    half.step(1)
    torch.testing.assert_close(2 * (half.weights - start), whole.weights - start, rtol=1e-3, atol=1e-6)


def test_the_attack_is_on_only_in_its_window():
    attacked = attacks.Campaign(attacks.create("sign-flip"), frozenset({"hospital-01"}), start=2, end=3)
    clean, fed = federation(), federation(campaign=attacked)
    clean.step(1)
    fed.step(1)
    assert torch.equal(clean.weights, fed.weights)
    fed.step(2)
    clean.step(2)
    assert not torch.equal(clean.weights, fed.weights)
    lines = fed.step(3).clients
    assert not any(line.attacking for line in lines)
    assert [line.client for line in lines if line.byzantine] == ["hospital-01"]


def test_the_root_set_is_drawn_from_validation_and_not_validated_on():
    fed = federation("fltrust", root_samples=12)
    own = fed.server_data
    assert len(own.root) == 12
    assert len(own.validation_rows) == len(own.dataset.validation) - 12
    assert not set(own.root.rows.tolist()) & set(own.validation_rows.tolist())
    before = fed.weights.clone()
    result = fed.step(1)
    assert len(result.clients) == 4, "the root update is no client"
    assert not torch.equal(before, fed.weights)


@pytest.mark.parametrize("rule", ["fedbn"])
def test_batch_norm_stays_at_home(rule):
    fed = federation(rule, batch_norm=True)
    mask = fed.layout.batch_norm_mask
    assert int(mask.sum()) == 4 * 8, "weight, bias, running mean and variance"
    initial = fed.weights[mask].clone()
    result = fed.step(1)
    assert torch.equal(fed.weights[mask], initial), "the server never sees BatchNorm"
    members = list(fed.clients.members.values())
    own = [client.batch_norm for client in members]
    assert not torch.equal(own[0], own[1]), "each client has its own"
    assert set(result.per_client) == set(fed.clients.members)
    assert result.metrics is not None
    torch.testing.assert_close(members[0].own_weights(fed.weights, fed.layout)[mask], own[0])


def test_a_client_not_seen_before_starts_with_the_initial_batch_norm():
    fed = federation("fedbn", batch_norm=True, participation=0.5)
    mask = fed.layout.batch_norm_mask
    initial = fed.weights[mask].clone()
    fed.step(1)
    unseen = next(client for client in fed.clients.members.values() if client.batch_norm is None)
    assert torch.equal(unseen.own_weights(fed.weights, fed.layout)[mask], initial)


def test_without_fedbn_running_statistics_travel():
    fed = federation("fedavg", batch_norm=True)
    before = fed.weights[fed.layout.batch_norm_mask].clone()
    assert fed.step(1).per_client is None
    assert not torch.equal(fed.weights[fed.layout.batch_norm_mask], before)


def test_fedprox_asks_for_the_proximal_term():
    plain, proximal = federation("fedavg"), federation("fedprox")
    plain.step(1)
    proximal.step(1)
    start = federation().weights
    assert not torch.equal(plain.weights, proximal.weights)
    assert (proximal.weights - start).norm() < (plain.weights - start).norm()


def test_state_goes_round_the_world_and_back():
    fed, other = federation("fedbn", batch_norm=True), federation("fedbn", batch_norm=True)
    fed.step(1)
    other.load_state_dict(fed.state_dict())
    assert fed.step(2).metrics == other.step(2).metrics
    assert torch.equal(fed.weights, other.weights)


def test_every_record_has_the_norm_of_its_update_unless_it_is_encrypted():
    pytest.importorskip("tenseal", reason="the extra `privacy` is not installed")
    open_one = federation().step(1)
    assert all(record.columns["norm"] > 0 for record in open_one.clients)
    sealed = federation(privacy=PrivacyParams(mode="encrypted-fedmed")).step(1)
    assert sealed.skipped is None
    assert all("norm" not in record.columns for record in sealed.clients)


def test_a_quarantined_client_is_not_asked_and_has_its_line():
    fed, alone = federation(), federation()
    fed.quarantined = lambda: {"hospital-01": "odd scanner", "never-joined": "a typing mistake"}
    record = fed.step(1)
    assert record.left_out == {"hospital-01": LeftOut("quarantined", "odd scanner")}
    line = next(line for line in record.clients if line.client == "hospital-01")
    assert (line.status, line.reason, line.weight) == ("quarantined", "odd scanner", 0.0)
    assert line.num_samples == len(fed.clients.members["hospital-01"].data)
    assert sum(line.weight for line in record.clients) == pytest.approx(1)
    fed.quarantined = dict
    assert fed.step(2).left_out == {}, "released: asked again"
    alone.step(1)
    assert not torch.equal(fed.weights, alone.weights)


def test_the_order_of_a_round(monkeypatch):
    """Noise leaves with honest updates, so that attackers see it; encryption comes after the attack."""
    pytest.importorskip("tenseal", reason="the extra `privacy` is not installed")
    seen = []
    dp = {"clip": 1.0, "noise_multiplier": 1.0}
    fed = federation(privacy=PrivacyParams(mode="encrypted-fedmed", dp=dp))

    def note(place, name, step):
        real = getattr(place, name)

        def noted(*args, **named):
            seen.append(step)
            return real(*args, **named)

        monkeypatch.setattr(place, name, noted)

    note(fed.clients, "choose", "choose")
    note(fed.protection, "check_budget", "budget")
    note(fed.trainer, "train", "train")
    for client in fed.clients.members.values():
        note(client, "add_noise", "noise")
        note(client.sealer, "seal", "seal")
    note(fed.campaign, "strike", "attack")
    note(fed.protection, "open", "aggregate")
    note(fed, "_apply", "apply")
    note(fed.evaluator, "measure", "evaluate")
    fed.step(1)
    assert list(dict.fromkeys(seen)) == [
        "choose", "budget", "train", "noise", "attack", "seal", "aggregate", "apply", "evaluate",
    ]  # fmt: skip
    assert seen.index("attack") > len(seen) - 1 - seen[::-1].index("noise"), "all noise before the attack"


def test_an_update_that_would_break_the_model_skips_the_round(monkeypatch):
    fed = federation()
    before = fed.weights.clone()
    real = fed.rule.aggregate

    def broken(*args, **named):
        result = real(*args, **named)
        result.delta = torch.full_like(result.delta, torch.inf)
        return result

    monkeypatch.setattr(fed.rule, "aggregate", broken)
    record = fed.step(1)
    assert record.skipped == "the aggregated update is not finite"
    assert torch.equal(fed.weights, before)
    assert {line.weight for line in record.clients} == {0.0}
    monkeypatch.undo()
    assert fed.step(2).skipped is None
    assert torch.isfinite(fed.weights).all()


def test_the_usable_model_has_the_mean_of_the_clients_batch_norm():
    fed = federation("fedbn", batch_norm=True)
    result = fed.step(1)
    mask = fed.layout.batch_norm_mask
    own = torch.stack([client.batch_norm for client in fed.clients.members.values()]).mean(0)
    usable = fed.usable_weights()
    assert torch.equal(usable[mask], own)
    assert torch.equal(usable[~mask], fed.weights[~mask])
    assert fed.evaluator.measure(usable)[0].metrics == result.metrics, "the model that was evaluated"


def test_the_usable_model_is_the_global_one_where_nothing_stays_with_clients():
    fed = federation("fedavg", batch_norm=True)
    fed.step(1)
    assert fed.usable_weights() is fed.weights


def test_simulated_clients_have_the_finished_model_already():
    fed = federation()
    assert fed.clients.deliver(FinishedModel(1, {}), list(fed.clients.members)) == {}
