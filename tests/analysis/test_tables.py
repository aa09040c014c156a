"""Methods side by side."""

import pytest

from wardround.analysis import compare, load_runs


def test_comparison_pairs_attacked_and_clean_runs_by_seed(runs):
    lines = compare(runs)
    assert [(line.method, line.attack, line.seeds) for line in lines] == [
        ("caac", "clean", 2),
        ("fedavg", "clean", 2),
        ("caac", "sign-flip 33 % from round 3", 2),
        ("fedavg", "sign-flip 33 % from round 3", 2),
    ]
    finals = {(r.method, r.attack, r.seed): r.final("auroc") for r in runs}
    attacked = lines[3]
    expected = [finals["fedavg", "clean", s] - finals["fedavg", attacked.attack, s] for s in (0, 1)]
    assert attacked.loss_of_auroc == pytest.approx(sum(expected) / 2)
    assert lines[0].verdict == "weights", "five rounds are caac's bootstrap, in which it flags nobody"


def test_a_rule_that_flags_is_judged_by_its_flags(make_run):
    make_run("caac", "sign-flip", flags=lambda client, number: client == "hospital-0")
    (line,) = compare(load_runs([make_run.root]))
    assert line.verdict == "flags"
