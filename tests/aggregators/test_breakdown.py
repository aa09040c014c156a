"""Up to the number of attackers a rule claims, no row however large, opposite or random leads it away."""

import importlib.util
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "breakdown.py"
SPEC = importlib.util.spec_from_file_location("wardround_breakdown", SOURCE)
breakdown = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = breakdown
SPEC.loader.exec_module(breakdown)


def label(claim):
    return "-".join([claim.name, *map(str, claim.params.values())])


@pytest.mark.slow
@pytest.mark.parametrize("claim", breakdown.CLAIMS, ids=label)
def test_a_rule_keeps_its_claim(claim):
    for attackers in (1, claim.claimed // 2, claim.claimed):
        assert breakdown.worst_distance(claim, attackers) <= breakdown.BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [c for c in breakdown.CLAIMS if c.claimed < breakdown.CLIENTS / 2], ids=label
)
def test_and_half_of_the_clients_break_it(claim):
    """So that the test above could fail: the attacks are strong enough to break what can be broken."""
    assert breakdown.worst_distance(claim, breakdown.CLIENTS // 2) > breakdown.BOUND


@pytest.mark.parametrize("claim", breakdown.NO_CLAIM, ids=label)
def test_rules_without_a_claim_do_break(claim):
    assert breakdown.worst_distance(claim, 3) > breakdown.BOUND


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("name", "attackers"),
    [
        ("trimmed-mean", 4),
        pytest.param("trimmed-mean", 8, marks=pytest.mark.slow),
        ("median", 4),
        pytest.param("smea", 4, marks=pytest.mark.slow),
    ],
)
def test_no_attack_drives_a_rule_beyond_its_proven_kappa(name, attackers, mixed):
    proven = breakdown.proven_kappa(name, attackers, mixed)
    assert 0 < breakdown.worst_kappa(name, attackers, mixed, seeds=1) <= proven


def test_kappa_is_proven_for_the_number_of_attackers_that_the_rule_counts_on():
    assert breakdown.proven_kappa("median", 8) is None
    assert breakdown.proven_kappa("krum", 4) is None


def test_the_attacks_do_drive_a_rule_that_is_not_robust():
    """So that the test above could fail."""
    assert breakdown.worst_kappa("mean", 4, seeds=1) > 1e6
