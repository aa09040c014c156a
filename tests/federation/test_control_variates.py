"""SCAFFOLD against algorithm 1 of its paper, on quadratics and in runs."""

from functools import partial

import numpy as np
import pytest
import torch
from fast_cases import slow_but
from stopped_runs import run_stopped_after_three
from torch import nn

from wardround import aggregators
from wardround.errors import ConfigError
from wardround.federation.control_variates import ClientControls, new_control, server_control
from wardround.runs.config import load_config
from wardround.runs.runner import build, run
from wardround.training import ClientData, ClientTask, Objective, SequentialTrainer, TrainingParams
from wardround.training.base import local_steps
from wardround.updates import Aggregation, Layout, Parts, Updates

LR = 0.1


class Squares(Objective):
    """Half the mean squared error, whose minimum has a formula."""

    def loss(self, logits, targets):
        return (logits[:, 0] - targets).square().mean() / 2


def quadratics(sizes, features=3):
    """Clients with problems of their own: inputs (n × features) and targets (n) each."""
    rng = np.random.default_rng(5)
    problems = []
    for size in sizes:
        inputs = rng.normal(size=(size, features)) * rng.uniform(0.3, 1.5, features)
        problems.append((inputs, inputs @ rng.normal(size=features) * 3))
    return problems


def optimum(problems):
    """Where the mean of the clients' losses is least."""
    left = sum(x.T @ x / len(x) for x, _ in problems)
    return np.linalg.solve(left, sum(x.T @ y / len(x) for x, y in problems))


def paper(problems, rounds, steps, participants, scaffold=True):
    """Algorithm 1 with option II and full batches, in plain numpy: the weights after every round."""
    n, size = len(problems), problems[0][0].shape[1]
    x, c, own, history = np.zeros(size), np.zeros(size), np.zeros((n, size)), []
    for chosen in participants(rounds):
        moves, changes = [], []
        for i in chosen:
            inputs, targets = problems[i]
            y = x.copy()
            for _ in range(steps(i)):
                gradient = inputs.T @ (inputs @ y - targets) / len(targets)
                y -= LR * (gradient - own[i] + c if scaffold else gradient)
            renewed = own[i] - c + (x - y) / (steps(i) * LR)
            moves.append(y - x)
            changes.append(renewed - own[i])
            own[i] = renewed
        x, c = x + np.mean(moves, axis=0), c + np.sum(changes, axis=0) / n
        history.append(x)
    return history


def ours(problems, rounds, params, participants, rule="mean"):
    """The same with the engine, the clients' and the server's control variates, and a rule of this package."""
    model = nn.Linear(problems[0][0].shape[1], 1, bias=False).double()
    layout, rule = Layout.of(model), aggregators.create(rule)
    trainer = SequentialTrainer(model, Squares(False, nn.Identity()), params)
    data = [ClientData(torch.from_numpy(x), torch.arange(len(x)), torch.from_numpy(y)) for x, y in problems]
    weights = torch.zeros(layout.size, dtype=torch.float64)
    control, own, history = torch.zeros_like(weights), [None] * len(problems), []
    for chosen in participants(rounds):
        tasks = [
            ClientTask(f"c{i}", data[i], i, correction=control if own[i] is None else control - own[i])
            for i in chosen
        ]
        matrix = trainer.train(weights, tasks, LR, params.prox_mu).matrix
        for i, row in zip(chosen, matrix, strict=True):
            own[i] = new_control(own[i], control, row, local_steps(params, len(data[i])), LR)
        updates = Updates(matrix, [f"c{i}" for i in chosen], [len(data[i]) for i in chosen])
        result = rule.aggregate(updates, 1, weights)
        control = server_control(
            control, updates, result, params, layout, LR, len(problems),
            partial(rule.aggregate, round=1),
        )  # fmt: skip
        weights = weights + result.delta
        history.append(weights.numpy())
    return history


def everyone(rounds, n=4):
    return [range(n)] * rounds


def some(rounds, n=4):
    rng = np.random.default_rng(1)
    return [sorted(rng.permutation(n)[:2]) for _ in range(rounds)]


@pytest.mark.parametrize("participants", [everyone, some], ids=["everyone", "some"])
@pytest.mark.parametrize("sizes", [[8, 8, 8, 8], [4, 8, 12, 20]], ids=["equal", "unequal"])
def test_it_is_the_papers_algorithm(participants, sizes):
    """Also where clients of several sizes make the same number of steps."""
    problems = quadratics(sizes)
    params = TrainingParams(method="scaffold", optimizer="sgd", batch_size=20, steps=5)
    reference = paper(problems, 12, lambda i: 5, participants)
    np.testing.assert_allclose(ours(problems, 12, params, participants), reference, rtol=1e-9, atol=1e-12)


def test_it_is_the_papers_algorithm_where_clients_make_different_numbers_of_steps():
    """One step per sample of its own: Σ(c_i⁺ − c_i) / N needs every update by its own number of steps."""
    problems = [
        (np.repeat(x[:1], len(x), 0), np.repeat(y[:1], len(y))) for x, y in quadratics([4, 8, 12, 20])
    ]
    params = TrainingParams(method="scaffold", optimizer="sgd", batch_size=1, epochs=1)
    reference = paper(problems, 12, lambda i: len(problems[i][0]), everyone)
    np.testing.assert_allclose(ours(problems, 12, params, everyone), reference, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("prox_mu", [0.0, 0.3])
def test_drift_is_gone(prox_mu):
    """FedAvg with 10 local steps ends beside the optimum of clients that differ; SCAFFOLD ends in it."""
    problems = quadratics([8, 8, 8, 8])
    best = optimum(problems)
    params = TrainingParams(method="scaffold", optimizer="sgd", batch_size=20, steps=10, prox_mu=prox_mu)
    drifted = paper(problems, 40, lambda i: 10, everyone, scaffold=False)[-1]
    assert np.linalg.norm(drifted - best) > 0.4 * np.linalg.norm(best)
    assert np.linalg.norm(ours(problems, 40, params, everyone)[-1] - best) < 1e-5 * np.linalg.norm(best)


@pytest.mark.slow
def test_drift_is_gone_where_clients_make_different_numbers_of_steps():
    problems = quadratics([4, 8, 12, 20])
    best = optimum(problems)
    params = TrainingParams(method="scaffold", optimizer="sgd", batch_size=4, epochs=1)  # 1 to 5 batches
    ends = np.mean(ours(problems, 200, params, everyone)[50:], axis=0)  # the noise of batches stays
    plain = paper(problems, 200, lambda i: len(problems[i][0]) // 4, everyone, scaffold=False)[-1]
    assert np.linalg.norm(ends - best) < 0.3 * np.linalg.norm(plain - best)


def test_a_robust_rule_bounds_what_an_attacker_does_to_the_server():
    """Median of 5 rows, one of them absurd: the control variate stays within what honest clients sent."""
    honest = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.cat([honest, torch.full((1, 6), 1e9, dtype=torch.float64)])
    updates, rule = Updates(rows), aggregators.create("median")
    params = TrainingParams(method="scaffold", optimizer="sgd", steps=2)
    result = rule.aggregate(updates, 1)
    layout = Layout(("w",), ((6,),))
    control = server_control(
        torch.zeros(6, dtype=torch.float64), updates, result, params, layout, 0.5, 5, rule.aggregate
    )
    assert (control >= -honest.max(0).values).all()
    assert (control <= -honest.min(0).values).all()


def test_a_skipped_round_and_an_update_that_is_not_finite_change_nothing():
    control, layout = torch.ones(2), Layout(("w",), ((2,),))
    params = TrainingParams(method="scaffold", optimizer="sgd", steps=1)
    updates, rule = Updates(torch.full((3, 2), torch.nan)), aggregators.create("mean")
    result = rule.aggregate(updates, 1)
    kept = server_control(control, updates, result, params, layout, 0.1, 3, rule.aggregate)
    assert torch.equal(kept, control)
    assert new_control(control, control, torch.tensor([torch.inf, 0]), 1, 0.1) is control
    assert new_control(None, control, torch.tensor([torch.nan, 0]), 1, 0.1) is None


SGD = {"optimizer": "sgd", "lr": 0.05, "batch_size": 8}


def weights_after(values, rounds, **training):
    federation = build(load_config({**values, "training": {**SGD, **training}}))
    for number in range(1, rounds + 1):
        federation.step(number)
    return federation.weights


@pytest.mark.parametrize(
    "training",
    slow_but([{"steps": 5, "prox_mu": 0.1}], [{"steps": 7}, {"epochs": 2}, {"steps": 5, "prox_mu": 0.1}]),
)
class TestRuns:
    @pytest.mark.slow
    def test_the_first_round_is_fedavg_and_the_second_is_not(self, tiny, training):
        scaffold = {**training, "method": "scaffold"}
        assert torch.equal(weights_after(tiny, 1, **scaffold), weights_after(tiny, 1, **training))
        assert not torch.allclose(weights_after(tiny, 2, **scaffold), weights_after(tiny, 2, **training))

    def test_a_single_client_is_fedavg(self, tiny, training):
        values = {**tiny, "partition": {"name": "iid", "clients": 1}}
        scaffold = {**training, "method": "scaffold"}
        torch.testing.assert_close(
            weights_after(values, 4, **scaffold), weights_after(values, 4, **training), rtol=1e-4, atol=1e-6
        )

    def test_engines_agree(self, tiny, training):
        scaffold = {**training, "method": "scaffold"}
        values = {**tiny, "participation": 0.5}
        ends = [
            weights_after({**values, "engine": engine}, 4, **scaffold)
            for engine in ("sequential", "vectorized", "fused", "processes")
        ]
        assert torch.equal(ends[0], ends[3])
        torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ends[2], ends[0], rtol=1e-5, atol=1e-6)

    def test_a_run_that_is_stopped_ends_with_the_same_bytes(self, tiny, training, tmp_path):
        config = load_config(
            {**tiny, "participation": 0.5, "training": {**SGD, **training, "method": "scaffold"}}
        )
        straight = run(config, tmp_path / "straight")
        resumed = run_stopped_after_three(config, tmp_path / "stopped")
        states = [folder.read_checkpoint()["federation"] for folder in (straight, resumed)]
        assert torch.equal(states[0]["weights"], states[1]["weights"])
        assert torch.equal(states[0]["control"], states[1]["control"])
        assert states[0]["clients"]["control"].keys() == states[1]["clients"]["control"].keys()
        for name, control in states[0]["clients"]["control"].items():
            assert torch.equal(control, states[1]["clients"]["control"][name])


def test_the_servers_variate_is_the_mean_of_the_clients(tiny):
    """Of all clients, also of those that have not taken part yet (zero), as the paper's sum keeps it."""
    training = {**SGD, "steps": 4, "method": "scaffold"}
    federation = build(
        load_config({**tiny, "participation": 0.5, "aggregator": {"name": "mean"}, "training": training})
    )
    for number in range(1, 5):
        federation.step(number)
        own = [client.control for client in federation.clients.members.values()]
        mean = sum(control for control in own if control is not None) / len(own)
        torch.testing.assert_close(federation.control, mean, rtol=1e-4, atol=1e-6)
    assert federation.control.norm() > 0


@pytest.mark.parametrize("training", slow_but([{"steps": 4}], [{"steps": 4}, {"epochs": 2}]))
class TestSplitUpdates:
    """With updates that are split by outcome, the server adds the corrections."""

    @staticmethod
    def values(tiny, training, **other):
        training = {**SGD, **training, "method": "scaffold"}
        return {**tiny, "participation": 0.5, "training": training, **other}

    def test_it_knows_the_clients_variates(self, tiny, training):
        values = self.values(tiny, {**training, "strata": "outcome"}, participation=1.0)
        federation = build(load_config(values))
        for number in range(1, 4):
            federation.step(number)
        for name, client in federation.clients.members.items():
            known, _ = federation.client_controls.own[name]
            torch.testing.assert_close(known, client.control, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("rule", ["fedavg", "median", "caac-guard"])
    def test_splitting_changes_nothing_but_rounding(self, tiny, training, rule):
        """Where clients that attack nothing are not left out."""
        ends = []
        for strata in ("none", "outcome"):
            values = self.values(tiny, {**training, "strata": strata}, aggregator={"name": rule})
            federation = build(load_config(values))
            for number in range(1, 5):
                federation.step(number)
            ends.append(federation.weights)
        torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_a_run_that_is_stopped_ends_with_the_same_bytes(self, tiny, training, tmp_path):
        values = self.values(tiny, training, aggregator={"name": "caac-guard"})
        values["attack"] = {"name": "sign-flip", "fraction": 0.2}
        config = load_config(values)
        straight = run(config, tmp_path / "straight")
        resumed = run_stopped_after_three(config, tmp_path / "stopped")
        states = [folder.read_checkpoint()["federation"] for folder in (straight, resumed)]
        assert torch.equal(states[0]["weights"], states[1]["weights"])
        assert states[0]["client_controls"].keys() == states[1]["client_controls"].keys()


def split(rows, samples):
    """Updates of clients with one outcome."""
    rows = torch.tensor(rows)
    counts = torch.tensor(samples, dtype=torch.float64)[:, None]
    return Updates(rows, num_samples=counts[:, 0], parts=Parts(rows[:, None], counts))


def test_parts_that_are_left_out_change_no_variate():
    params = TrainingParams(method="scaffold", optimizer="sgd", steps=2)
    controls = ClientControls(params, Layout(("w",), ((2,),)))
    updates = split([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], [5, 5, 5])
    result = Aggregation(torch.zeros(2), flags=torch.tensor([False, True, False]), dropped={"client-02": "?"})
    controls.follow(updates, result, lr=0.5)
    assert list(controls.own) == ["client-00"]
    own, steps = controls.own["client-00"]
    assert own.tolist() == [-1.0, 0.0]
    assert steps == 2
    completed = controls.add_corrections(updates, torch.tensor([0.0, 10.0]), lr=0.5)
    assert completed.matrix.tolist() == [[0.0, -10.0], [0.0, -8.0], [3.0, -10.0]]
    assert (completed.parts.sums() + completed.parts.correction).equal(completed.matrix)
    controls.follow(updates, Aggregation(torch.zeros(2), skipped="too few"), lr=0.5)
    assert list(controls.own) == ["client-00"]


def test_who_claims_more_samples_than_before_does_not_multiply_its_variate():
    params = TrainingParams(method="scaffold", optimizer="sgd", batch_size=10)
    controls = ClientControls(params, Layout(("w",), ((1,),)))
    controls.follow(split([[1.0]], [10]), Aggregation(torch.zeros(1)), lr=0.5)
    for samples in (10, 1000):
        completed = controls.add_corrections(split([[0.0]], [samples]), torch.zeros(1), lr=0.5)
        assert completed.matrix.tolist() == [[-1.0]]


def test_a_masked_sum_is_enough(tiny):
    """Where all clients make the same number of steps the server needs nothing but the aggregate."""
    pytest.importorskip("flwr")
    values = {**tiny, "rounds": 2, "privacy": {"mode": "secure-aggregation", "max_share": 0.9}}
    masked = weights_after(values, 2, steps=4, method="scaffold")
    plain = weights_after({**tiny, "rounds": 2}, 2, steps=4, method="scaffold")
    torch.testing.assert_close(masked, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"privacy": {"dp": {"epsilon": 8.0, "clip": 1.0}}}, r"scaffold with privacy\.dp"),
        ({"privacy": {"mode": "secure-aggregation"}}, r"secure-aggregation needs training\.steps"),
        ({"training": {"method": "scaffold"}}, r"training: method scaffold needs optimizer sgd"),
    ],
)
def test_what_is_not_defined_is_refused(tiny, values, said):
    with pytest.raises(ConfigError, match=said):
        load_config({**tiny, "training": {**SGD, "method": "scaffold"}, **values})
