from collections.abc import Mapping
from typing import ClassVar

import pytest
import yaml

from wardround import aggregators
from wardround.errors import ConfigError
from wardround.experiments import expand, load_config, override, presets, read_yaml
from wardround.registry import Parameters


def test_an_empty_configuration_is_the_protocol_on_the_embedded_data():
    config = load_config({})
    assert config.dataset["name"] == "icu"
    assert config.partition == config.partition | {"name": "dirichlet", "clients": 20, "alpha": 0.1}
    assert config.training.optimizer == "adam"
    assert config.training.batch_size == 32
    assert config.rounds == 100


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agregator": {}}, r"f.yaml: unknown key 'agregator'; did you mean 'aggregator'\?"),
        ({"aggregator": {"name": "krumm"}}, r"unknown aggregator 'krumm'.*known:.*fedavg"),
        ({"aggregator": {"name": "caac", "tboot": 3}}, r"unknown key 'tboot'; did you mean 't_boot'"),
        ({"aggregator": "caac"}, r"aggregator: must be a valid dictionary"),
        ({"partition": {"name": "dirichlet", "alpha": -1}}, r"alpha: must be greater than 0, got -1"),
        (
            {"partition": {"name": "dirichlet", "clients": 0}},
            r"clients: must be greater than or equal to 1, got 0",
        ),
        ({"training": {"optimiser": "adam"}}, r"unknown key 'training.optimiser'; did you mean 'optimizer'"),
        ({"training": {"lr": 0}}, r"training.lr: must be greater than 0, got 0"),
        (
            {"attack": {"name": "sign-flip", "fracton": 0.2}},
            r"unknown key 'fracton'; did you mean 'fraction'",
        ),
        ({"attack": {"name": "sign-flip", "fraction": 1.5}}, r"fraction: must be less than or equal to 1"),
        ({"attack": {"name": "sign-flip", "start": 9, "end": 9}}, r"end must be after start"),
        ({"attack": {"name": "sign-flip", "clients": ["a"], "fraction": 0.1}}, r"not both"),
        ({"attack": {"name": "sign-flip"}}, r"attack 'sign-flip': nobody attacks; give attack\.fraction"),
        ({"attack": {"name": "alie", "start": 3}}, r"attack 'alie': nobody attacks; give attack\.fraction"),
        ({"attack": {"name": "alie", "clients": []}}, r"attack 'alie': nobody attacks"),
        (
            {"attack": {"name": "alie", "fraction": 0.2, "start": 31}, "rounds": 30},
            r"attack\.start=31 is after the last round \(rounds=30\): the attack never begins",
        ),
        (
            {"attack": {"name": "alie", "clients": ["a"], "start": 31}, "rounds": 30},
            r"the attack never begins",
        ),
        (
            {"attack": {"name": "alie", "fraction": 0.049}, "partition": {"clients": 10}},
            r"attack\.fraction=0\.049 of 10 clients is less than half a client, so nobody attacks; 0\.1 is one",
        ),
        (
            {"fault": {"name": "unit-eror", "fraction": 0.1}},
            r"unknown fault 'unit-eror'; did you mean 'unit-error'",
        ),
        ({"fault": {"name": "unit-error", "fractn": 0.1}}, r"fault 'unit-error': unknown key 'fractn'"),
        ({"fault": {"name": "unit-error"}}, r"fault 'unit-error': nobody is broken; give fault\.fraction"),
        (
            {"fault": {"name": "unit-error", "fraction": 0.2, "start": 31}, "rounds": 30},
            r"fault\.start=31 is after the last round \(rounds=30\): the fault never begins",
        ),
        (
            {"fault": {"name": "unit-error", "fraction": 0.049}, "partition": {"clients": 10}},
            r"fault\.fraction=0\.049 of 10 clients is less than half a client, so nobody is broken; 0\.1 is one",
        ),
        (
            {
                "fault": {"name": "duplicate-patients", "fraction": 0.2},
                "privacy": {"dp": {"unit": "patient", "clip": 1.0, "noise_multiplier": 1.0}},
            },
            r"fault 'duplicate-patients' repeats patients, whom privacy.dp with unit patient counts once",
        ),
        ({"privacy": {"mode": "secret"}}, r"privacy.mode"),
        ({"rounds": "many"}, r"rounds: must be a valid integer"),
        ({"seed": -1}, r"seed"),
        ({"name": "../up"}, r"name"),
        ({"server_lr": float("nan")}, r"server_lr: must be a finite number"),
        ({3: 4}, r"keys must be words"),
    ],
)
def test_a_mistake_is_said_in_one_line(values, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(values, "f.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("f.yaml: ")


def test_the_smallest_share_and_the_latest_start_that_attack_somebody():
    attack = {"name": "alie", "fraction": 0.05, "start": 30}
    config = load_config({"attack": attack, "partition": {"clients": 10}, "rounds": 30})
    assert (config.window().fraction, config.window().start) == (0.05, 30)


def test_without_an_attack_nobody_attacks_whatever_fraction_says():
    """`axes: attack.name: [none, sign-flip]` beside `base: attack: {fraction: 0.25}` is the obvious way to write it."""
    clean = load_config({})
    said = load_config({"attack": {"name": "none", "fraction": 0.25, "start": 15}})
    assert said.window().fraction == 0
    assert said.hash == clean.hash, "the same run, so that it is run once"
    assert load_config({"attack": {"clients": ["a"]}}).hash == clean.hash
    matrix = {
        "base": {"attack": {"fraction": 0.25, "start": 5}},
        "axes": {"attack.name": ["none", "sign-flip", "alie"]},
    }
    assert [config.window().fraction for config in expand(matrix)] == [0, 0.25, 0.25]


def test_a_share_of_zero_that_is_written_out_is_meant():
    """A sweep over shares begins at zero, and a run folder's config.yaml has every default in it."""
    config = load_config({"attack": {"name": "alie", "fraction": 0}})
    assert load_config(config.plain()).hash == config.hash


def test_an_override_that_is_given_twice_is_an_error():
    with pytest.raises(ConfigError, match="'seed' is given twice among the overrides"):
        override({}, ["seed=1", "rounds=2", "seed=1"])


def test_a_key_that_stands_twice_in_a_file_is_an_error(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("seed: 1\nrounds: 3\nseed: 2\n")
    with pytest.raises(
        ConfigError, match=r"twice\.yaml: .* in line 3: 'seed' is given twice, in lines 1 and 3"
    ):
        read_yaml(path)


def test_a_section_without_a_name_is_of_the_default_member():
    assert load_config({"partition": {"alpha": 1.0}}).partition["name"] == "dirichlet"


@pytest.mark.usefixtures("registries")
def test_a_former_name_of_a_parameter_works_with_a_warning():
    @aggregators.register("renamed")
    class Renamed(aggregators.registry.get("mean")):
        class Params(Parameters):
            renamed: ClassVar[Mapping[str, str]] = {"hearings": "contradiction_rounds"}
            contradiction_rounds: int = 3

    former = {"aggregator": {"name": "renamed", "hearings": 2}}
    with pytest.warns(FutureWarning, match="'hearings' is now called 'contradiction_rounds'"):
        config = load_config(former)
    assert config == load_config({"aggregator": {"name": "renamed", "contradiction_rounds": 2}})
    assert "hearings" not in config.aggregator
    nameless = {"aggregator": {"hearings": 2}}
    assert override(nameless, {"aggregator.name": "renamed"})["aggregator"]["hearings"] == 2


def test_the_hash_is_of_the_experiment_not_of_its_name():
    one, other = load_config({"name": "a"}), load_config({"name": "b"})
    assert one.hash == other.hash
    assert one.run_name != other.run_name
    assert load_config({"seed": 1}).hash != one.hash
    assert load_config({"aggregator": {"name": "fedavg"}}).hash == one.hash, "defaults written out or not"


def test_what_is_written_can_be_read_again():
    config = load_config({"aggregator": {"name": "caac"}, "attack": {"name": "sign-flip", "fraction": 0.2}})
    again = load_config({**yaml.safe_load(yaml.safe_dump(config.plain())), "record": {"anything": 1}})
    assert again == config


def test_overrides_reach_every_depth_and_order_does_not_matter():
    base = {"attack": {"name": "none", "fraction": 0.2}}
    one = override(base, ["attack.scale=3", "attack.name=sign-flip", "rounds=7", "model.hidden=[4, 2]"])
    assert one["attack"] == {"name": "sign-flip", "fraction": 0.2, "scale": 3}
    assert one["rounds"] == 7
    assert one["model"] == {"hidden": [4, 2]}
    assert base == {"attack": {"name": "none", "fraction": 0.2}}, "the input is left alone"


@pytest.mark.parametrize("change", ["seed", "=3", "seed=[1", "rounds.x=1"])
def test_a_wrong_override_is_an_error(change):
    with pytest.raises(ConfigError):
        load_config(override({"rounds": 3}, [change]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "not valid YAML in line"),
        ("- 1\n- 2\n", "expected keys and values"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_not_a_configuration(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_every_scenario_is_a_valid_override_and_other_keys_go_above_it():
    for name in presets.scenarios():
        assert load_config(override({}, {"scenario": name})).attack["name"]
    config = load_config(override({}, ["scenario=dos-noise-40", "partition.clients=20", "attack.start=5"]))
    assert config.attack["fraction"] == 0.4
    assert config.attack["start"] == 5
    assert config.partition["clients"] == 20
    with pytest.raises(ConfigError, match="unknown scenario 'dos-noise'; did you mean 'dos-noise-40'"):
        override({}, ["scenario=dos-noise"])


def test_drift_is_given_once_and_names_what_moves():
    drift = {"clients": ["hospital-01"], "feature_shift": 1.0}
    assert load_config({"drift": drift}).drift.ramp == 50
    former = {"clients": ["hospital-01"], "size": 1.0}
    with pytest.raises(ConfigError, match="drift is given twice"):
        load_config({"dataset": {"name": "synthetic", "drift": former}, "drift": drift})
    with pytest.raises(ConfigError, match="nothing moves"):
        load_config({"drift": {"clients": ["hospital-01"]}})
    patients = {"dp": {"unit": "patient", "clip": 1.0, "noise_multiplier": 1.0}}
    with pytest.raises(ConfigError, match="label_shift repeats patients"):
        load_config({"drift": {**drift, "label_shift": 0.5}, "privacy": patients})
    load_config({"drift": drift, "privacy": patients})


def test_a_run_without_drift_is_called_what_it_was():
    assert "drift" not in load_config({"rounds": 3}).identity()


def test_a_run_without_fault_is_called_what_it_was():
    plain = load_config({"rounds": 3})
    written = load_config({"rounds": 3, "fault": {"name": "none"}})
    broken = load_config({"rounds": 3, "fault": {"name": "unit-error", "fraction": 0.1}})
    assert plain.hash == written.hash
    assert plain.legacy_hash == written.legacy_hash
    assert "fault" not in plain.identity()
    assert broken.identity()["fault"] == {"name": "unit-error", "fraction": 0.1}
    assert plain.hash != broken.hash
    assert plain.legacy_hash != broken.legacy_hash, "version 0.1 had no such run"


def test_another_fault_leaves_behind_the_parameters_of_the_former():
    values = {"fault": {"name": "unit-error", "fraction": 0.1, "factor": 5}}
    assert override(values, ["fault.name=stale-update"])["fault"] == {"name": "stale-update", "fraction": 0.1}
