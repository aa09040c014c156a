"""The evidence for a recommendation as a table."""

from wardround.analysis.evidence import evidence_table
from wardround.analysis.recommendation import recommend


def made(attacks, seeds=(0, 1, 2)):
    return {
        method: {
            (attack, seed): clean - loss * number + 0.01 * seed
            for number, attack in enumerate(["clean", *attacks])
            for seed in seeds
        }
        for method, clean, loss in (("fedavg", 0.85, 0.1), ("median", 0.83, 0.01))
    }


def test_one_column_per_attack_where_they_are_few():
    table = evidence_table(recommend(made(["alie", "noise"])))
    assert table.columns == ["rule", "without attack", "alie", "noise", "worst case"]
    assert table.rows[0] == ["median", "0.840 ± 0.010", "0.830 ± 0.010", "0.820 ± 0.010", "0.820 ± 0.010"]
    assert table.rows[1][0] == "fedavg"
    assert "mean ± standard deviation over 3 seeds" in table.notes[0]


def test_mean_and_worst_where_attacks_are_many():
    table = evidence_table(recommend(made(["a", "b", "c", "d"])))
    assert table.columns == ["rule", "without attack", "mean of 4 attacks", "worst case", "worst attack"]
    assert table.rows[0] == ["median", "0.840 ± 0.010", "0.815 ± 0.010", "0.800 ± 0.010", "d"]


def test_one_seed_has_no_spread_and_no_attack_no_worst_case():
    table = evidence_table(recommend(made([], seeds=(0,))))
    assert table.columns == ["rule", "without attack"]
    assert table.rows == [["fedavg", "0.850"], ["median", "0.830"]]
    assert "one seed" in table.notes[0]
    assert "Worst case" not in table.notes[0]


def test_rules_that_were_not_compared_are_named():
    results = made(["alie", "noise"]) | {"krum": {("clean", 0): 0.7}}
    assert "krum" in evidence_table(recommend(results)).notes[1]


def test_nothing_compared_has_no_table():
    assert evidence_table(recommend({})) is None
