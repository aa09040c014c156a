"""Comparisons with a reference method, paired by seed."""

import pytest

from wardround.analysis import analyze
from wardround.errors import ConfigError
from wardround.protocols import papers


@pytest.mark.slow
def test_comparisons_say_what_three_seeds_can_show(three_seeds, table_of):
    found = analyze(three_seeds, papers=papers())
    assert found.reference == "caac"
    assert {(c.attack, c.other) for c in found.comparisons} == {
        (attack, other) for attack in ("clean", "sign-flip 25 % from round 5") for other in ("krum", "fedavg")
    }
    text = table_of(found, "comparisons").markdown()
    assert text.count("3 seeds: smallest possible p is 0.25") == 4
    assert analyze(three_seeds, "krum").reference == "krum"
    with pytest.raises(ConfigError, match="--reference: no run of method 'kram'; did you mean 'krum'"):
        analyze(three_seeds, "kram")
