"""caac-guard in whole runs, on data and seeds that its tables do not use."""

import pytest

from wardround.experiments import load_config
from wardround.runs.runner import build
from wardround.runs.summary import detection, flagged
from wardround.threads import one_thread

ROUNDS = 25
OPTIMIZERS = {"sgd": {"optimizer": "sgd", "lr": 0.05}, "adam": {"optimizer": "adam", "lr": 0.001}}


def run(
    attack="none", rule="caac-guard", seed=107, optimizer="sgd", model=None, dataset=None, **attack_params
):
    config = load_config(
        {
            "dataset": dataset or {"name": "synthetic", "samples": 3000},
            "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3, "sizes": "power-law"},
            "model": model or {"name": "mlp", "hidden": [32]},
            "training": {"batch_size": 32, "epochs": 1, **OPTIMIZERS[optimizer]},
            "aggregator": {"name": rule},
            "attack": {"name": attack, **({} if attack == "none" else {"fraction": 0.3}), **attack_params},
            "rounds": ROUNDS,
            "evaluate_every": ROUNDS,
            "seed": seed,
        },
        "test",
    )
    with one_thread():
        federation = build(config)
        results = [federation.step(t) for t in range(1, ROUNDS + 1)]
    clients = [record for result in results for record in result.clients]
    return results[-1].metrics["auroc"], detection(clients, flagged(clients))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{"name": "mlp", "hidden": [32]}, {"name": "logistic"}], ids=["mlp", "logistic"]
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_attack_hardly_anybody_is_flagged_and_the_model_is_that_of_fedavg(optimizer, model):
    auroc, found = run(optimizer=optimizer, model=model)
    assert found["fpr"] <= 0.01
    assert auroc == pytest.approx(run(rule="fedavg", optimizer=optimizer, model=model)[0], abs=0.002)


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 5])
@pytest.mark.parametrize("attack", ["sign-flip", "ipm", "alie", "min-max"])
def test_attackers_are_found_and_cost_little(attack, start):
    auroc, found = run(attack, start=start)
    assert found["tpr"] >= (0.6 if attack == "alie" else 0.9)  # it hides within the spread of honest parts
    assert found["fpr"] <= 0.01
    assert auroc >= run()[0] - 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "optimizer"), [(None, "sgd"), (None, "adam"), ({"name": "digits"}, "sgd")], ids=str
)
def test_exchanged_labels_are_found_with_two_outcomes_and_with_ten(dataset, optimizer):
    flips = {"attack": "label-flip", "mode": "invert", "p": 1, "dataset": dataset, "optimizer": optimizer}
    auroc, found = run(**flips)
    assert found["tpr"] >= 0.8
    assert found["fpr"] <= 0.01
    assert auroc >= run(rule="oracle", **flips)[0] - 0.01


@pytest.mark.slow
def test_a_long_row_of_noise_or_a_long_honest_one_does_no_harm():
    clean = run()[0]
    assert run("noise")[0] >= clean - 0.03
    assert run("scaling", factor=100)[0] >= clean - 0.03
