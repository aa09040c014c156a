import pytest

from wardround.records import ClientRecord, RoundRecord
from wardround.runs.folder import RunFolder
from wardround.runs.summary import summarize


def client_records(number, byzantine, start, flags, weights, clients):
    return [
        ClientRecord(
            number, client, byzantine=client in byzantine, attacking=client in byzantine and number >= start,
            num_samples=10, weight=weights(client, number), score=1.0 + number % 2,
            flag=flags(client, number), columns={"threshold": 2.0},
        )
        for client in clients
    ]  # fmt: skip


@pytest.fixture
def make_run(tmp_path):
    """Write a run folder by hand: every number in it is the test's own."""
    counter = iter(range(10_000))

    def make(
        method="caac", attack="none", seed=0, auroc=0.8, rounds=20, start=5, alpha=0.1, share=0.25,
        flags=lambda client, number: False, weights=lambda client, number: 0.25, held=None, drift=None,
        status="finished", curve=None, aggregate=0.001, dataset="synthetic", accuracy=0.75, **more,
    ):  # fmt: skip
        held = held or {f"hospital-{i}": [50 - 10 * i, 10 + 10 * i] for i in range(4)}
        clients = list(held)
        byzantine = clients[: round(share * len(clients))] if attack != "none" else []
        config = {
            "name": "made", "dataset": {"name": dataset, "drift": drift},
            "partition": {"name": "dirichlet", "alpha": alpha, "clients": len(clients)},
            "model": {"name": "mlp"}, "training": {"lr": 0.001}, "aggregator": {"name": method},
            "attack": {"name": attack, "fraction": share, "start": start, "end": None}, "rounds": rounds, "seed": seed,
            "record": {"clients": held, "class_names": ["a", "b"], "attack": {"byzantine": byzantine}},
        }  # fmt: skip
        for key, value in more.items():
            section, _, name = key.partition("__")
            if name:
                config[section][name] = value
            else:
                config[section] = value
        folder = RunFolder(tmp_path / "runs" / f"made-{next(counter)}")
        folder.path.mkdir(parents=True)
        folder.write_config(config)
        curve = curve or (lambda number: auroc * min(1.0, 0.5 + 0.1 * number))
        own = {client: {"auroc": 0.6 + 0.1 * i} for i, client in enumerate(clients)}
        records = [
            RoundRecord(
                number,
                seconds={"train": 0.1, "attack": 0.0, "aggregate": aggregate, "evaluate": 0.1},
                metrics={
                    "auroc": curve(number), "auprc": (curve(number) or 0) / 2, "accuracy": accuracy,
                    "f1": 0.5, "loss": 1.0,
                },
                validation={"auroc": curve(number)},
                per_client=own if number == rounds else None,
                memory_mb=100.0,
                clients=client_records(number, byzantine, start, flags, weights, clients),
            )
            for number in range(1, rounds + 1)
        ]  # fmt: skip
        for record in records:
            folder.append(record)
        everyone = [client for record in records for client in record.clients]
        folder.write_summary(summarize(records, everyone, status))
        return folder

    make.root = tmp_path / "runs"
    return make
