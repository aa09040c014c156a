"""The anchors of FLamby on small files in the real layout, against a plain replica of FLamby's own steps.

Tolerances: inputs and splits are the same up to the rounding of scales (0.01 of a standard deviation); accuracies and
C-indices of the replica and of wardround differ by at most 0.08, since initial weights and batches are other ones.
"""

import copy

import numpy as np
import pytest
import torch
from raw_tables import HOSPITALS, REGIONS, write_heart, write_tcga
from sklearn.model_selection import train_test_split

from wardround import datasets
from wardround.analysis import load_runs, measure_all
from wardround.analysis.clients import own_metrics
from wardround.analysis.published import published_table, read_published
from wardround.datasets.prepared_cache import prepare
from wardround.experiments import expand, presets, run
from wardround.protocols.anchors import section
from wardround.runs.runner import load_and_partition

TOLERANCE = 0.08


def configs_of(preset, changes=(), seeds="[0,1]"):
    return expand(*presets.load_matrix(preset), [f"seeds={seeds}", *changes])


def flamby_heart(folder):
    """FLamby's Fed-Heart-Disease, step by step: hospital → (scaled rows, labels) of training and of test."""
    kept = {}
    for name in HOSPITALS:
        lines = (folder / f"processed.{name}.data").read_text().split()
        cells = [[c for i, c in enumerate(line.split(",")) if i not in (10, 11, 12)] for line in lines]
        kept[name] = np.array([[float(c) for c in row] for row in cells if "?" not in row])
    result = {}
    for name, rows in kept.items():
        plain = rows[:, [0, 1, 3, 4, 5, 7, 8, 9]]
        dummies = [rows[:, 2] == level for level in (2, 3, 4)] + [rows[:, 6] == level for level in (1, 2)]
        features, labels = np.column_stack([plain, *dummies]), (rows[:, -1] > 0).astype(int)
        few = np.bincount(labels, minlength=2).min() <= 2
        train, test = train_test_split(
            np.arange(len(rows)), test_size=1 - 0.66, train_size=0.66, random_state=43, shuffle=True,
            stratify=None if few else labels,
        )  # fmt: skip
        mean, spread = features[train].mean(0), features[train].std(0, ddof=1)
        scaled = (features - mean) / (spread + 1e-9)
        result[name] = [(scaled[np.sort(part)], labels[np.sort(part)]) for part in (train, test)]
    return result


def plain_federation(network, clients, loss, lr, rounds, steps, size):
    """FedAvg as FLamby runs it: so many batches per client and round, weighted by their rows."""
    counts = torch.tensor([float(len(x)) for x, _ in clients])
    for _ in range(rounds):
        updates = []
        for x, y in clients:
            own = copy.deepcopy(network)
            optimizer = torch.optim.SGD(own.parameters(), lr)
            for step in range(steps):
                if step % -(-len(x) // size) == 0:
                    batches = torch.randperm(len(x)).split(size)
                batch = batches[step % len(batches)]
                optimizer.zero_grad()
                loss(own(x[batch])[:, 0], y[batch]).backward()
                optimizer.step()
            updates.append(torch.nn.utils.parameters_to_vector(own.parameters()).detach())
        mean = (torch.stack(updates) * counts[:, None]).sum(0) / counts.sum()
        torch.nn.utils.vector_to_parameters(mean, network.parameters())
    return network


@pytest.fixture
def heart(tmp_path):
    folder = write_heart(tmp_path / "heart")
    prepare(datasets.create("heart", variant="flamby"), folder)
    return folder


@pytest.fixture
def tcga(tmp_path):
    folder = write_tcga(tmp_path / "tcga")
    prepare(datasets.create("tcga-brca"), folder)
    return folder


def test_heart_has_flambys_rows_columns_scales_and_split(heart):
    config = configs_of("anchor-heart")[0]
    data, assignment = load_and_partition(config)
    expected = flamby_heart(heart)
    assert set(assignment.clients) == set(expected)
    assert (data.input_shape, len(data.validation)) == ((13,), 0)
    for client, train, test in zip(assignment.clients, assignment.train, assignment.test, strict=True):
        for split, rows, (features, labels) in zip(
            (data.train, data.test), (train, test), expected[client], strict=True
        ):
            rows = np.sort(rows)
            assert split.targets[rows].tolist() == labels.tolist()
            shrunk = np.sqrt(1 - 1 / len(expected[client][0][0]))  # they divide by n − 1
            np.testing.assert_allclose(split.inputs[rows].numpy() * shrunk, features, atol=0.01)
    other = load_and_partition(configs_of("anchor-heart", seeds="[7]")[0])[0]
    assert torch.equal(other.test.targets, data.test.targets), "the split does not depend on the seed"


@pytest.mark.slow
def test_heart_comes_out_as_the_replica(heart, tmp_path):
    changes = ["rounds=4", "training.steps=40", "training.lr=0.05"]
    every = [c for c in configs_of("anchor-heart", changes) if c.partition["name"] == "natural"]
    fedavg = [c for c in every if c.aggregator["name"] == "fedavg" and c.server.optimizer == "sgd"]
    for config in fedavg:
        run(config, tmp_path / "runs", workers=1)
    ours = {}
    for one in load_runs([tmp_path / "runs"]):
        if one.config["training"]["method"] == "plain":
            for client, value in own_metrics(one, "accuracy").items():
                ours.setdefault(client, []).append(value)
    expected = {name: [] for name in HOSPITALS}
    data = flamby_heart(heart)
    clients = [
        (torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
        for (x, y), _ in data.values()
    ]
    for seed in (0, 1):
        torch.manual_seed(seed)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        network = plain_federation(torch.nn.Linear(13, 1), clients, loss, 0.05, 4, 40, 4)
        for name, (_, (x, y)) in data.items():
            said = network(torch.tensor(x, dtype=torch.float32))[:, 0].detach().numpy() > 0
            expected[name].append(float((said == (y > 0)).mean()))
    for name in HOSPITALS:
        assert len(ours[name]) == 2
        assert np.mean(ours[name]) == pytest.approx(np.mean(expected[name]), abs=TOLERANCE), name


def test_heart_prints_every_figure_beside_ours(heart, tmp_path):
    for config in configs_of("anchor-heart", ["rounds=1", "training.steps=3", "training.epochs=1"], "[0]"):
        run(config, tmp_path / "runs", workers=1)
    measured = measure_all(load_runs([tmp_path / "runs"]))
    table = published_table(read_published(*presets.load_matrix("anchor-heart")), measured)
    assert len(table.rows) == 25
    assert [row[3] is None for row in table.rows[:20]] == [False] * 20, (
        "all hospitals, under all five methods"
    )
    shown = section(measured)
    assert shown is not None
    assert [own.key for own in shown.tables] == ["published-anchor-heart"]


def test_tcga_has_the_published_split_and_regions(tcga):
    data, assignment = load_and_partition(configs_of("anchor-tcga-brca")[0])
    lines = [line.split(",") for line in (tcga / "train_test_split.csv").read_text().split()[1:]]
    for part, count in (("train", len(data.train)), ("test", len(data.test))):
        assert count == sum(line[1] == part for line in lines)
    assert set(assignment.clients) == set(REGIONS.values())
    for client, train, test in zip(assignment.clients, assignment.train, assignment.test, strict=True):
        number = list(REGIONS.values()).index(client)
        assert len(train) == sum(line[2] == f"train_{number}" for line in lines)
        assert len(test) == sum(line[2] == f"test_{number}" for line in lines)
    assert data.train.inputs[:, 0].min() >= 40, "columns as they are: age in years"
    assert (data.task.value, data.outputs, len(data.validation)) == ("survival", 1, 0)


def plain_cox(scores, targets):
    """FLamby's loss: sorted by falling time, a log-sum of all before; the mean over the batch."""
    order = sorted(range(len(scores)), key=lambda i: -abs(float(targets[i])))
    losses = [
        torch.logsumexp(scores[order[: place + 1]], 0) - scores[i]
        for place, i in enumerate(order)
        if targets[i] > 0
    ]
    return sum(losses, scores.sum() * 0) / len(scores)


def plain_c_index(risks, targets):
    right = pairs = 0
    for i in range(len(risks)):
        for j in range(len(risks)):
            if targets[i] > 0 and abs(targets[j]) > targets[i]:
                pairs += 1
                right += (risks[i] > risks[j]) + 0.5 * (risks[i] == risks[j])
    return right / pairs


@pytest.mark.slow
def test_tcga_comes_out_as_the_replica(tcga, tmp_path):
    changes = ["rounds=2", "training.steps=15", "training.lr=0.01"]
    configs = [c for c in configs_of("anchor-tcga-brca", changes) if c.partition["name"] == "natural"]
    plain = [c for c in configs if c.server.optimizer == "sgd"]
    values = []
    for config in plain:
        values.append(run(config, tmp_path / "runs", workers=1).summary().final["c_index"])
    data, assignment = load_and_partition(plain[0])
    clients = [(data.train.inputs[rows], data.train.targets[rows]) for rows in assignment.train]
    expected = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        start = torch.nn.Linear(data.input_shape[0], 1)
        network = plain_federation(start, clients, plain_cox, 0.01, 2, 15, 8)
        risks = network(data.test.inputs)[:, 0].detach().numpy()
        expected.append(plain_c_index(risks, data.test.targets.numpy()))
    assert len(values) == 2
    assert np.mean(values) == pytest.approx(np.mean(expected), abs=TOLERANCE)
    assert min(values) > 0.6, "a signal is there, and is found"


def test_tcga_files_that_do_not_fit_are_named(tcga, tmp_path):
    from wardround.errors import DataError

    source = datasets.create("tcga-brca")
    (tcga / "centers.csv").write_text("TSS Code,Region\nBH,Northeast\n")
    with pytest.raises(DataError, match=r"centers.csv has no region of the source site of TCGA-A2-0000"):
        prepare(source, tcga)
    split = tcga / "train_test_split.csv"
    split.write_text(split.read_text() + "TCGA-XX-9999,train,train_0\n")
    with pytest.raises(DataError, match="of whom"):
        prepare(source, tcga)
    split.unlink()
    with pytest.raises(DataError, match=r"train_test_split.csv does not exist; expected: a folder with"):
        prepare(source, tcga)
