"""Model replacement: the average becomes the attackers' model, unless a bound forbids it."""

import pytest
import torch

from wardround import attacks


def known(**changes):
    return attacks.Knowledge(
        round=2,
        global_weights=torch.ones(4),
        previous_global_weights=torch.zeros(4),
        total_clients=10,
        **changes,
    )


def test_the_average_ends_at_the_attackers_model():
    backdoored = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 2)
    sent = attacks.create("model-replacement").craft(backdoored, known())
    everyone = torch.cat([sent, torch.zeros(8, 4)])
    torch.testing.assert_close(everyone.mean(0), backdoored[0])


def test_a_bound_is_kept():
    rows = torch.full((2, 4), 30.0)
    rows[1] = 0.01
    sent = attacks.create("model-replacement", bound=3.0).craft(rows, known())
    assert sent[0].norm().item() == pytest.approx(6.0)  # three times the last step of norm 2
    torch.testing.assert_close(sent[1], torch.full((4,), 0.05))


def test_it_is_a_backdoor_whose_success_is_measured():
    attack = attacks.create("model-replacement", features=[1], value=9)
    assert attack.backdoors == (attack,)
    assert attack.poisons_data
    assert attack.trigger(torch.zeros(1, 2)).tolist() == [[0.0, 9.0]]


def test_constrain_and_scale_trains_nearer_to_the_global_model(tiny):
    """α of the loss is the attackers' alone, and only while they attack."""
    from wardround.runs.config import load_config
    from wardround.runs.runner import build

    def norms(alpha):
        attack = {
            "name": "model-replacement",
            "alpha": alpha,
            "boost": 1,
            "clients": ["hospital-02"],
            "start": 2,
        }
        federation = build(load_config({**tiny, "training": {"epochs": 5}, "attack": attack}))
        federation.step(1)
        before = federation.weights
        seen = federation.step(2)
        return before, {record.client: record.columns["norm"] for record in seen.clients}

    (start, plain), (same, constrained) = norms(1.0), norms(0.2)
    assert torch.equal(start, same), "nobody attacks in round 1"
    assert constrained["hospital-02"] < 0.9 * plain["hospital-02"]
    honest = [client for client in plain if client != "hospital-02"]
    assert [plain[client] for client in honest] == [constrained[client] for client in honest]
