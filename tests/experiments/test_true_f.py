"""`f: attackers` of a matrix: rules are told how many attack, and no more than they are sound for."""

import pytest

from wardround.errors import ConfigError
from wardround.experiments import expand

TEN = {"partition": {"name": "dirichlet", "clients": 10}}


def f_of(aggregator, fraction, base=TEN, **more):
    attack = {"name": "sign-flip", "fraction": fraction} if fraction else {"name": "none"}
    matrix = {
        "base": {**base, **more},
        "runs": [{"attack": attack, "aggregator": aggregator}],
        "f": "attackers",
    }
    (config,) = expand(matrix)
    return config.aggregator.get("f")


@pytest.mark.parametrize(
    ("rule", "fraction", "f"),
    [
        ("trimmed-mean", 0.0, 0),
        ("trimmed-mean", 0.1, 1),
        ("trimmed-mean", 0.4, 4),
        ("trimmed-mean", 0.6, 4),  # N ≥ 2f+1
        ("krum", 0.3, 3),
        ("krum", 0.4, 3),  # N ≥ 2f+3
        ("bulyan", 0.4, 1),  # N ≥ 4f+3
        ("fedavg", 0.4, None),
    ],
)
def test_every_rule_gets_the_number_of_attackers(rule, fraction, f):
    assert f_of({"name": rule}, fraction) == f


def test_an_f_that_is_said_stays():
    assert f_of({"name": "krum", "f": 1}, 0.3) == 1


def test_attackers_by_name_and_harmless_parts_are_counted_as_they_are():
    parts = [{"name": "sign-flip", "share": 0.5}, {"name": "none", "share": 0.5}]
    runs = [
        {"attack": {"name": "sign-flip", "clients": ["hospital-01", "hospital-02"]}},
        {"attack": {"name": "mix", "fraction": 0.4, "parts": parts}},
    ]
    found = expand({"base": TEN, "runs": runs, "axes": {"aggregator.name": ["krum"]}, "f": "attackers"})
    assert [config.aggregator["f"] for config in found] == [2, 2]


def test_of_the_clients_of_a_round_where_not_all_take_part():
    base = {"partition": {"name": "dirichlet", "clients": 20}}
    assert f_of({"name": "trimmed-mean"}, 0.3, base, participation=0.5) == 3


def test_a_pre_aggregation_gets_it_too():
    matrix = {
        "base": TEN,
        "runs": [
            {"attack": {"name": "sign-flip", "fraction": 0.3}, "aggregator": {"name": "rfa", "pre": ["nnm"]}}
        ],
    }
    (told,) = expand(matrix, changes=["f=attackers"])
    (as_it_was,) = expand(matrix)
    assert told.aggregator["pre"][0]["f"] == 3
    assert as_it_was.aggregator["pre"][0]["f"] is None


def test_the_same_run_as_with_the_number_written_out():
    run = {"attack": {"name": "sign-flip", "fraction": 0.3}}
    (told,) = expand({"base": TEN, "runs": [{**run, "aggregator": {"name": "krum"}}], "f": "attackers"})
    (written,) = expand({"base": TEN, "runs": [{**run, "aggregator": {"name": "krum", "f": 3}}]})
    assert told.hash == written.hash


def test_another_word_is_an_error():
    with pytest.raises(ConfigError, match=r"f must be 'attackers'.*got 'half'.*aggregator\.f"):
        expand({"base": TEN, "f": "half"})


def test_an_unknown_number_of_clients_is_an_error():
    matrix = {"base": {"partition": {"name": "natural"}, "aggregator": {"name": "krum"}}, "f": "attackers"}
    with pytest.raises(ConfigError, match=r"f: attackers wants partition\.clients.*'natural'.*aggregator\.f"):
        expand(matrix)
