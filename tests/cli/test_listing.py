"""`wardround list`."""

import json

import pytest


@pytest.mark.parametrize(
    "kind", ["aggregators", "attacks", "datasets", "faults", "models", "partitions", "presets", "scenarios"]
)
def test_list_for_people_and_programs(kind, here):
    assert here("list", kind).returncode == 0
    members = json.loads(here("list", kind, "--json").stdout)
    assert members
    assert all(member["summary"] for member in members), "everything says what it is"


def test_list_attacks_shows_knowledge_and_defaults(here):
    members = {m["name"]: m for m in json.loads(here("list", "attacks", "--json").stdout)}
    assert members["sign-flip"]["knowledge"] == ["own"]
    assert members["sign-flip"]["parameters"] == {"scale": 10.0}


def test_a_fault_and_the_oracle_are_explained(here):
    assert "wrong sign" in here("list", "faults", "negated-features").stdout
    assert "neither attack nor are broken" in here("list", "aggregators", "oracle").stdout
    assert "did you mean" in here("list", "faults", "negated-feature").stderr
