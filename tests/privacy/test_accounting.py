import math

import pytest

from wardround.privacy.accounting import Ledger
from wardround.privacy.encryption.refusals import BudgetSpent

opacus = pytest.importorskip("opacus.accountants", reason="the extra 'privacy' is not installed")


def test_epsilon_is_what_opacus_says_for_the_same_history():
    ledger = Ledger(delta=1e-5)
    reference = opacus.RDPAccountant()
    for _ in range(7):
        ledger.spend({"a": (2.5, 1.0, 1), "b": (3.0, 0.1, 20)})
        reference.step(noise_multiplier=2.5, sample_rate=1.0)
    assert ledger.epsilon() == pytest.approx(reference.get_epsilon(delta=1e-5))


def test_rdp_of_plain_gaussians_by_hand():
    """k releases have RDP kα/(2z²); the classical conversion adds ln(1/δ)/(α−1): an upper bound on Opacus's."""
    ledger, k, z = Ledger(delta=1e-5), 10, 4.0
    ledger.spend({"a": (z, 1.0, k)})
    by_hand = min(k * a / (2 * z * z) + math.log(1e5) / (a - 1) for a in (1 + x / 10 for x in range(1, 600)))
    assert 0.8 * by_hand < ledger.epsilon() <= by_hand


def test_prv_is_tighter_than_rdp():
    spent = {}
    for accountant in ("rdp", "prv"):
        ledger = Ledger(1e-5, accountant)
        ledger.spend({"a": (2.0, 1.0, 5)})
        spent[accountant] = ledger.epsilon()
    assert 0.5 * spent["rdp"] < spent["prv"] < spent["rdp"]


def test_the_client_that_spent_most_decides():
    ledger = Ledger(1e-5)
    ledger.spend({"a": (2.0, 1.0, 1), "b": (2.0, 1.0, 1)})
    once = ledger.epsilon()
    ledger.spend({"b": (2.0, 1.0, 1)})
    assert ledger.epsilon() > once
    alone = Ledger(1e-5)
    alone.spend({"b": (2.0, 1.0, 2)})
    assert ledger.epsilon() == alone.epsilon()


def test_the_budget_is_checked_before_it_is_spent():
    ledger = Ledger(1e-5, budget=5.0)
    release = {"a": (1.5, 1.0, 1)}
    for number in (1, 2):
        ledger.check(release, number)
        ledger.spend(release)
    assert 0 < ledger.epsilon() <= 5.0
    with pytest.raises(BudgetSpent, match=r"round 3 would spend ε = .* of 5"):
        ledger.check(release, 3)
    assert ledger.steps["a"] == {(1.5, 1.0): 2}, "nothing was booked"


def test_state_survives():
    ledger = Ledger(1e-5)
    ledger.spend({"a": (2.0, 0.5, 3), "b": (2.0, 1.0, 1)})
    again = Ledger(1e-5)
    again.load_state_dict(ledger.state_dict())
    assert again.epsilon() == ledger.epsilon()
    again.spend({"a": (2.0, 0.5, 1)})
    assert again.steps["a"] == {(2.0, 0.5): 4}
    assert ledger.steps["a"] == {(2.0, 0.5): 3}


def test_nothing_spent_is_nothing():
    assert Ledger(1e-5).epsilon() == 0.0
