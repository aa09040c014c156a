"""Free riders: nothing of their own data is in what they send."""

import pytest
import torch

from wardround import attacks


def known(round=2, start=2):
    w = torch.linspace(-1, 1, 5000)
    return attacks.Knowledge(
        round=round,
        start=start,
        global_weights=w,
        previous_global_weights=torch.zeros(5000),
        clients=("a", "b"),
    )


@pytest.mark.parametrize("kind", ["plain", "disguised", "delta"])
def test_their_training_has_no_influence(kind):
    attack = attacks.create("free-rider", kind=kind)
    assert torch.equal(
        attack.craft(torch.ones(2, 5000), known()), attack.craft(torch.zeros(2, 5000), known())
    )


def test_the_disguise_has_the_spread_of_the_last_step_and_fades():
    attack = attacks.create("free-rider", noise=2.0, decay=0.5)
    own = torch.zeros(2, 5000)
    std = torch.linspace(-1, 1, 5000).std(correction=0).item()
    assert attack.craft(own, known())[0].std().item() == pytest.approx(2 * std, rel=0.05)
    assert attack.craft(own, known(round=5))[0].std().item() == pytest.approx(2 * std / 2, rel=0.05)
    first, second = attack.craft(own, known())
    assert not torch.equal(first, second), "two free riders do not send the same"


def test_plain_and_first_round_are_zero():
    assert not attacks.create("free-rider", kind="plain").craft(torch.ones(1, 5000), known()).any()
    assert not attacks.create("free-rider").craft(torch.ones(1, 3), attacks.Knowledge(round=1)).any()
