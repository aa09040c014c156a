"""What is checked in a hospital before it joins."""

import pytest

from wardround.datasets.schema import Schema
from wardround.errors import ConfigError
from wardround.flower.hospital.join import Joiner

SCHEMA = {"columns": [{"name": "age", "range": [0, 120]}], "label": {"name": "died", "classes": ["0", "1"]}}


def check(path, **options):
    findings = Joiner.read(path, options.pop("insecure", False)).check(**options)
    return {finding.check: finding for finding in findings}


def test_a_hospital_that_is_ready(hospital):
    found = check(hospital())
    assert {one.status for one in found.values() if one.check != "clock"} == {"ok"}
    assert found["data"].text == "28 training and 8 test samples fit its own description"
    assert {"key", "authority", "clock", "disk", "memory"} <= set(found)


def test_a_table_against_the_federations_schema(hospital):
    assert "fit the federation's schema" in check(hospital(), schema=Schema.from_dict(SCHEMA))["data"].text
    narrow = {**SCHEMA, "columns": [{"name": "age", "range": [0, 50]}]}
    found = check(hospital(), schema=Schema.from_dict(narrow))["data"]
    assert found.status == "failed"
    assert "column 'age' holds '51' (row 12 and 28 more), expected a number from 0 to 50" in found.text


def test_a_table_that_only_the_federation_can_describe(hospital):
    path = hospital(dataset={"name": "csv", "file": "stays.csv"})
    assert (
        "40 rows can be read; what the columns mean, the federation's schema says" in check(path)["data"].text
    )
    assert check(path, schema=Schema.from_dict(SCHEMA))["data"].status == "ok"


def test_data_that_cannot_be_read_or_are_of_one_class(hospital, tmp_path):
    found = check(hospital(dataset={"name": "csv", "file": "no.csv", "label": "died"}))["data"]
    assert (found.status, "does not exist" in found.text) == ("failed", True)
    path = hospital(dataset={"name": "csv", "file": "one.csv"})
    (tmp_path / "one.csv").write_text("age,died\n" + "\n".join(f"{40 + i},0" for i in range(30)))
    found = check(path, schema=Schema.from_dict(SCHEMA))["data"]
    assert found.status == "warning"
    assert "all of them are '0'" in found.text


def test_keys(hospital, keys, tmp_path):
    (keys.nodes / "a").chmod(0o640)
    assert "chmod 600" in check(hospital())["key"].remedy
    (keys.nodes / "a").chmod(0o600)
    assert check(hospital(node_key="certs/nodes/b"))["key's name"].status == "warning"
    assert "not a private key" in check(hospital(node_key="certs/ca.crt"))["key"].text
    assert "is required" in check(hospital(node_key=None))["key"].text
    assert "not a certificate" in check(hospital(root_certificates="hospital.yaml"))["authority"].text
    found = check(hospital(steward_key="no.key", peer_keys="certs/nodes"))
    assert found["steward's key"].status == "failed"
    assert found["peers' keys"].text.endswith("a, b")


def test_join_says_what_failed_and_reads_tables_only(hospital):
    joiner, lines = Joiner.read(hospital(dataset={"name": "csv", "file": "no.csv"})), []
    with pytest.raises(ConfigError, match=r"no\.csv does not exist"):
        joiner.preflight(lines.append)
    large = Joiner.read(hospital(dataset={"name": "synthetic", "samples": 50, "features": 3}))
    assert "data" not in {one.check for one in large.check(with_data=False)}
    large.preflight(lines.append)
