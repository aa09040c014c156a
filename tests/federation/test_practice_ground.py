"""The server's own side: what it trains, plants and judges, and that it never learns the run's truth."""

import pytest
import torch
from torch import nn

from wardround import aggregators, attacks, datasets, models
from wardround.aggregators.fedbnp.practice import PRACTICE_ATTACKS
from wardround.attacks import Campaign
from wardround.datasets import partition
from wardround.datasets.base import Dataset, Split, Task
from wardround.errors import ConfigError
from wardround.federation import Schedule, simulated_federation
from wardround.federation.evaluation import metrics_of
from wardround.federation.model_factory import objective_of
from wardround.federation.practice_ground import batched_logits
from wardround.training import SequentialTrainer, TrainingParams
from wardround.training.dense import DenseStack

QUICK = {
    "practice_groups": 1,
    "calm_groups": 1,
    "practice_draws": 2,
    "practice_clients": 5,
    "rl_steps": 10,
    "tries": 2,
}


class FalseTruth(Campaign):
    """Some clients attack, but the record names others."""

    def __init__(self, really, allegedly):
        super().__init__(attacks.create("sign-flip"), really)
        self.really, self.byzantine = self.byzantine, frozenset(allegedly)

    def strike(self, *arguments, **named):
        allegedly, self.byzantine = self.byzantine, self.really
        try:
            return super().strike(*arguments, **named)
        finally:
            self.byzantine = allegedly


def network(batch_norm):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if batch_norm else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.ReLU(), nn.Linear(8, 1))


def federation(rule="fedbnp", batch_norm=False, campaign=None, params=QUICK, clients=6, **schedule):
    dataset = datasets.create("synthetic", samples=600, features=6).load(0)
    assignment = partition.create("iid", clients=clients).assign(dataset.train, dataset.test, 0)
    model, training = network(batch_norm), TrainingParams(lr=0.01)
    return simulated_federation(
        dataset,
        assignment,
        model,
        aggregators.create(rule, **params),
        campaign or Campaign(attacks.create("none"), frozenset()),
        SequentialTrainer(model, objective_of(dataset), training),
        training,
        Schedule(**{"rounds": 5, "root_samples": 30, **schedule}),
    )


@pytest.mark.slow
def test_the_runs_truth_is_never_read():
    """The same attack under a true and a false record: what the detector thinks must be the same."""
    weights, claims = [], []
    for allegedly in (["hospital-01"], ["hospital-00", "hospital-03", "hospital-04"]):
        fed = federation(campaign=FalseTruth(["hospital-01"], allegedly))
        for t in (1, 2):
            lines = fed.step(t).clients
        weights.append([line.weight for line in lines])
        claims.append([line.client for line in lines if line.byzantine])
    assert claims == [["hospital-01"], ["hospital-00", "hospital-03", "hospital-04"]]
    assert weights[0] == weights[1]


def test_a_false_truth_still_attacks():
    attacked, calm = (
        federation("mean", campaign=FalseTruth(["hospital-01"], []), params={}),
        federation("mean", params={}),
    )
    attacked.step(1)
    calm.step(1)
    assert not torch.equal(attacked.weights, calm.weights)


def test_made_up_hospitals_are_the_same_when_asked_again_and_others_otherwise():
    fed = federation()
    ground = fed.practice_ground.at(fed.weights)
    one = ground.root_updates(1, 4, group=1, draw=0)
    assert one.shape == (4, fed.layout.size)
    assert torch.equal(one, ground.root_updates(1, 4, group=1, draw=0))
    assert torch.equal(one[:3], ground.root_updates(1, 3, group=1, draw=0))
    assert torch.equal(ground.reference(1), ground.reference(1))
    for other in ((1, 4, 1, 1), (1, 4, 2, 0), (2, 4, 1, 0)):
        assert not torch.equal(one, ground.root_updates(*other))


def test_made_up_hospitals_draw_from_a_half_of_the_root_set_and_their_reference_from_the_other():
    fed = federation()
    tasks = [fed.practice_ground._task(1, 2, draw, row) for row in range(6) for draw in range(3)]
    root = set(fed.server_data.root.rows.tolist())
    for task in tasks:
        assert set(task.data.rows.tolist()) <= root
        assert torch.equal(task.data.targets, fed.server_data.dataset.validation.targets[task.data.rows])
    trained = []
    ground = fed.practice_ground.at(fed.weights)
    train = ground.trainer.train
    ground.trainer.train = lambda weights, work, *rest: trained.extend(work) or train(weights, work, *rest)
    ground.reference(1, group=2)
    own = {row for task in trained for row in task.data.rows.tolist()}
    assert own <= root
    assert not own & {row for task in tasks for row in task.data.rows.tolist()}
    assert len({len(task.data) for task in tasks}) > 1, "hospitals differ in size"
    assert len(fed.practice_ground._task(1, 2, 0, 1, sizes=[5, 77]).data) == 77
    assert len(fed.practice_ground._task(1, 2, 0, 0, sizes=[10**12]).data) == 20 * len(fed.server_data.root)


def test_the_reference_is_blind_to_case_mix():
    """Orthogonal, by the projection's definition, to the difference between two classes' own updates."""
    fed = federation()
    ground, trained = fed.practice_ground.at(fed.weights), []
    train = ground.trainer.train

    def watched(weights, work, *rest):
        out = train(weights, work, *rest)
        trained.append(([task.data.targets for task in work], out.matrix.clone()))
        return out

    ground.trainer.train = watched
    reference = ground.reference(1)
    ((targets, rows),) = trained
    assert [len(set(labels.tolist())) for labels in targets] == [2, 1, 1]
    assert 0.3 < targets[0].double().mean() < 0.7, "as many samples of each class"
    between = (rows[1] - rows[2]).double()
    expected = rows[0].double() - between * (rows[0].double() @ between) / (between @ between)
    torch.testing.assert_close(reference.double(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("attack", PRACTICE_ATTACKS)
def test_planting_changes_only_what_the_attackers_send(attack):
    fed = federation()
    ground = fed.practice_ground.at(fed.weights)
    honest = ground.root_updates(1, 5, group=3)
    before = honest.clone()
    byzantine, crafted = ground.plant(honest, attack, 1, group=3)
    assert torch.equal(honest, before)
    assert byzantine.dtype == torch.bool
    assert 1 <= int(byzantine.sum()) == len(crafted) <= 2
    assert not torch.equal(crafted, honest[byzantine])
    again = ground.plant(honest, attack, 1, group=3)
    assert torch.equal(byzantine, again[0])
    assert torch.equal(crafted, again[1])
    if attack == "sign-flip":
        assert torch.equal(crafted, -honest[byzantine])
    if attack == "scaling":
        torch.testing.assert_close(crafted, 10 * honest[byzantine])


@pytest.mark.parametrize("batch_norm", [False, True])
def test_values_are_those_of_the_usual_evaluation(batch_norm):
    """Dense networks go through in one batch of models, others one by one: the same figures."""
    fed = federation("rl", batch_norm)
    ground = fed.practice_ground.at(fed.weights)
    assert (ground.stack is None) == batch_norm
    candidates = fed.weights + 0.3 * torch.randn(
        4, fed.layout.size, generator=torch.Generator().manual_seed(0)
    )
    if batch_norm:
        candidates[:, fed.layout.batch_norm_mask] = fed.weights[fed.layout.batch_norm_mask]
    inputs, targets = ground.evaluation_samples
    assert not set(map(tuple, inputs.tolist())) & set(
        map(tuple, fed.server_data.root.inputs[fed.server_data.root.rows].tolist())
    )
    for candidate, value in zip(candidates, ground.value(candidates).tolist(), strict=True):
        model = network(batch_norm).eval()
        tensors = model.state_dict()
        for name, tensor in fed.layout.unflatten(candidate).items():
            tensors[name].copy_(tensor)
        with torch.no_grad():
            assert value == pytest.approx(metrics_of(model(inputs), targets, Task.BINARY)["auroc"], abs=1e-3)


def test_with_local_batch_norm_values_do_not_hang_on_untrained_statistics():
    fed = federation("fedbnp", batch_norm=True)
    ground = fed.practice_ground.at(fed.weights)
    mask = fed.layout.batch_norm_mask
    far = fed.weights.clone()
    far[fed.layout.slices["1.running_mean"]] = 100.0
    both = ground.value(torch.stack([fed.weights, far]))
    assert both[0] == both[1]
    assert torch.equal(ground.root_updates(1, 2)[:, mask], torch.zeros(2, int(mask.sum())))


def test_a_broken_model_is_worth_nothing():
    fed = federation()
    assert fed.practice_ground.at(fed.weights).value(torch.full((1, fed.layout.size), torch.nan)).item() == 0


def test_batched_logits_are_those_of_each_network():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2, bias=False)).eval()
    inputs, stack = torch.randn(7, 3), DenseStack.of(model)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    many = batched_logits(stack, torch.stack([weights, 0 * weights]), inputs)
    torch.testing.assert_close(many[0], model(inputs).detach())
    assert not many[1].any()


def test_a_root_set_that_leaves_nothing_to_judge_by_is_an_error():
    with pytest.raises(ConfigError, match=r"lower root\.samples"):
        federation(root_samples=10_000)


@pytest.mark.slow
def test_fedbnp_end_to_end_with_batch_norm_and_sampling():
    fed = federation("fedbnp", batch_norm=True, participation=0.5)
    mask = fed.layout.batch_norm_mask
    initial = fed.weights[mask].clone()
    first = fed.step(1)
    assert len(first.clients) == 3
    unseen = next(client for client in fed.clients.members.values() if client.batch_norm is None)
    assert torch.equal(unseen.own_weights(fed.weights, fed.layout)[mask], initial)
    record = fed.step(2)
    assert torch.equal(fed.weights[mask], initial)
    assert set(record.per_client) == set(fed.clients.members)
    assert record.metrics["auroc"] > 0
    assert all(line.weight > 0 and line["evaluations"] > 0 for line in record.clients)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_not_stopped():
    fed, other = federation(), federation()
    fed.step(1)
    other.load_state_dict(fed.state_dict())
    assert fed.step(2).clients == other.step(2).clients


def images(samples, side, seed):
    """Bright and dark squares of noise."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(samples) % 2
    return Split(
        torch.randn(samples, 1, side, side, generator=generator) + targets.view(-1, 1, 1, 1), targets
    )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "side"), [("medical-cnn", 16), ("resnet18", 28)])
@pytest.mark.parametrize("rule", ["fedbn", "fedprox", "fedbnp"])
def test_convolutional_networks_with_batch_norm_end_to_end(rule, model, side):
    if model == "resnet18":
        pytest.importorskip("monai")
    dataset = Dataset("squares", Task.BINARY, ("dark", "bright"), *(images(n, side, n) for n in (64, 30, 24)))
    assignment = partition.create("iid", clients=4).assign(dataset.train, dataset.test, 0)
    net = models.build_seeded(models.create(model), dataset.input_shape, dataset.outputs, 0)
    training = TrainingParams(lr=0.01, batch_size=8, optimizer="sgd")
    quick = {"practice_groups": 1, "calm_groups": 1, "practice_draws": 1, "practice_clients": 3,
             "practice_permutations": 1, "rl_steps": 5, "tries": 2, "attention_epochs": 1, "vae_epochs": 2}  # fmt: skip
    fed = simulated_federation(
        dataset,
        assignment,
        net,
        aggregators.create(rule, **(quick if rule == "fedbnp" else {})),
        Campaign(attacks.create("sign-flip"), frozenset({"hospital-01"})),
        SequentialTrainer(net, objective_of(dataset), training),
        training,
        Schedule(rounds=2, root_samples=8, participation=0.75),
    )
    before, mask = fed.weights.clone(), fed.layout.batch_norm_mask
    for t in (1, 2):
        record = fed.step(t)
    assert torch.isfinite(fed.weights).all()
    assert not torch.equal(fed.weights[~mask], before[~mask])
    assert torch.equal(fed.weights[mask], before[mask]) == (rule != "fedprox")
    assert len(record.clients) == 3
    assert set(record.per_client) == set(fed.clients.members)
    if rule == "fedbnp":
        assert all(line.flag in (True, False) and line["evaluations"] <= 22 for line in record.clients)
