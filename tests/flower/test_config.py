"""fed.yaml and hospital.yaml: valid files are read, mistakes are reported in one line."""

import pytest

from wardround.errors import WardroundError
from wardround.flower.config import (
    FederationParams,
    federation_from,
    hospital_from,
    load_federation,
    load_hospital,
)

DEALT = "dataset: {name: icu}\npartition: {name: iid, clients: 4}\n"


def test_a_federation_without_data_of_its_own_needs_only_the_number_of_hospitals():
    config = federation_from("rounds: 3\nfederation: {clients: 3}")
    assert (config.clients, config.per_round, config.has_dataset, config.has_partition) == (
        3,
        3,
        False,
        False,
    )
    assert config.plain()["dataset"] == {"name": "hospitals"}
    assert config.plain()["partition"] == {"name": "hospitals", "clients": 3}


def test_a_simulation_takes_the_number_from_its_partition():
    config = federation_from(DEALT + "participation: 0.5")
    assert (config.clients, config.per_round) == (4, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: 3", "federation.clients is required"),
        (
            "federation: {clients: 3}\nfault: {name: unit-error, clients: [a]}",
            "fault 'unit-error': faults are played in simulations only",
        ),
        ("federation: {clients: 3}\naggregator: {name: oracle}", "'oracle' is told who attacks"),
        ("federation: {clients: 3, quorm: 1}", "did you mean 'quorum'"),
        ("federation: {clients: 3, quorum: 4}", "only 3 hospitals are asked"),
        ("federation: {clients: 3, quorum: 1.5}", "a share above 0 and up to 1.0"),
        ("federation: {clients: 3, quorum: 0}", "a count of at least 1"),
        ("federation: {clients: 3}\naggregator: {name: fltrust}", "needs root data at the server"),
        ("federation: {clients: 3}\naggregator: {name: krum, f: 1}", "N ≥ 2f+3"),
        ("federation: {clients: 3}\nattack: {name: alie, clients: [a]}", "a hospital can play alone"),
        ("federation: {clients: 3}\nprivacy: {mode: encrypted-fedmed}", "a steward in a process of its own"),
        ("federation: {clients: 3}\nattack: {name: sign-flip, fraction: 0.4}", "attack.clients names those"),
        ("partition: {name: iid}", "add dataset, or leave partition out"),
        (DEALT + "federation: {clients: 3}", "partition.clients is 4"),
        ("federation: 3", "expected keys and values"),
        ("- 1", "expected keys and values"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_wrong_federation_is_one_line_with_its_file(text, message):
    with pytest.raises(WardroundError) as error:
        federation_from(text, "fed.yaml")
    assert str(error.value).startswith("fed.yaml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a"}, "'dataset' is required"),
        ({"name": "a", "dataset": {}}, "'name' is required"),
        ({"name": "a", "dataset": {"name": "icux"}}, "did you mean 'icu'"),
        ({"name": "a", "dataset": {"name": "icu"}, "attack": {"name": "alie"}}, "can play alone"),
        ({"name": "a", "dataset": {"name": "icu"}, "attack": {"nam": "x"}}, "unknown key"),
        ({"name": "a", "dataset": {"name": "icu"}, "part": 1}, "go together"),
        ({"name": "a", "dataset": {"name": "icu"}, "part": 4, "partition": {"name": "iid", "clients": 4}}, "below"),
        ({"name": "../a", "dataset": {"name": "icu"}}, "name"),
    ],
)  # fmt: skip
def test_a_wrong_hospital_is_one_line_with_its_file(values, message):
    with pytest.raises(WardroundError) as error:
        hospital_from(values, "hospital.yaml")
    assert str(error.value).startswith("hospital.yaml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_relative_paths_are_seen_from_the_file(tmp_path):
    (tmp_path / "hospital.yaml").write_text(
        "name: st-anna\ndataset: {name: icu}\nnode_key: keys/st-anna\nroot_certificates: /etc/ca.crt\n"
    )
    hospital = load_hospital(tmp_path / "hospital.yaml")
    assert hospital.node_key == tmp_path / "keys/st-anna"
    assert str(hospital.root_certificates) == "/etc/ca.crt"
    (tmp_path / "fed.yaml").write_text("federation: {clients: 2, certificate: server.pem}\n")
    assert load_federation(tmp_path / "fed.yaml").federation.certificate == tmp_path / "server.pem"


def test_a_drill_may_use_what_one_hospital_sees():
    drill = {"name": "slow-drift", "start": 3}
    hospital = hospital_from({"name": "a", "dataset": {"name": "icu"}, "attack": drill})
    assert hospital.run_attack().window().clients == ("a",)


def test_waiting_doubles_up_to_five_minutes():
    params = FederationParams(backoff_seconds=10)
    assert [params.wait(attempt) for attempt in (1, 2, 3, 9)] == [10, 20, 40, 300]
