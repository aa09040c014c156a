"""caac-guard in whole runs, on data and seeds that its tables do not use."""

import pytest

from wardround.experiments import load_config
from wardround.runs.runner import build
from wardround.runs.summary import detection, flagged
from wardround.threads import one_thread

ROUNDS = 25
SEEDS = (107, 108, 109, 110)
ATTACKS = {name: {"name": name} for name in ("none", "sign-flip", "noise", "scaling", "alie", "label-flip")}
ATTACKS["reversed"] = {"name": "sign-flip", "scale": 1}


def run(attack, start=1, rule="caac-guard", seed=107, **aggregator):
    config = load_config(
        {
            "dataset": {"name": "synthetic", "samples": 3000},
            "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3, "sizes": "power-law"},
            "model": {"name": "mlp", "hidden": [32]},
            "training": {"optimizer": "adam", "lr": 0.001, "batch_size": 32, "epochs": 1},
            "aggregator": {"name": rule, **aggregator},
            "attack": {"fraction": 0.0 if attack == "none" else 0.4, "start": start, **dict(ATTACKS[attack])},
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


@pytest.fixture(scope="module")
def clean():
    return {root: run("none", root=root) for root in (False, True)}


@pytest.mark.parametrize("root", [False, True])
def test_honest_clients_are_left_alone(clean, root):
    assert clean[root][1]["fpr"] <= 0.02


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("start", [1, 5])
@pytest.mark.parametrize("attack", ["sign-flip", "noise", "scaling", "alie"])
def test_blunt_attacks_are_found_and_cost_little(clean, attack, start, root):
    auroc, found = run(attack, start, root=root)
    assert found["tpr"] >= 0.95
    assert found["fpr"] <= 0.05
    assert found["latency"] <= 3
    assert auroc >= clean[root][0] - 0.07


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["reversed", "label-flip"])
def test_flips_from_the_first_round_on_have_no_bad_case(attack):
    """40 % of the hospitals, most of which have mostly one class."""
    worst = {
        rule: min(run(attack, rule=rule, seed=seed)[0] for seed in SEEDS) for rule in ("fedavg", "caac-guard")
    }
    assert worst["caac-guard"] > max(0.5, worst["fedavg"] + 0.2)


def test_without_attack_it_is_as_good_as_fedavg(clean):
    assert clean[False][0] >= run("none", rule="fedavg")[0] - 0.005
