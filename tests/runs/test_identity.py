"""A run's identity: what its configuration says. Defaults say nothing, and no two experiments share a folder."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.aggregators.base import registry as aggregator_registry
from wardround.errors import ConfigError
from wardround.experiments import load_config, run, run_many
from wardround.runs.config import SECTIONS
from wardround.runs.folder import RunFolder
from wardround.runs.identity import experiment_of, find_folder

SAID = {
    "partition": {"clients": 6},
    "aggregator": {"name": "caac", "t_boot": 3},
    "attack": {"name": "mix", "fraction": 0.3, "parts": [{"name": "noise", "share": 1.0, "std": 2.0}]},
    "training": {"lr": 0.01},
    "privacy": {"dp": {"epsilon": 8.0}},
}
CHANGES = {
    "seed": st.integers(1, 9),
    "rounds": st.integers(9, 99),
    "server_lr": st.floats(0.1, 0.9),
    "participation": st.floats(0.1, 0.9),
    "engine": st.sampled_from(["sequential", "vectorized", "fused"]),
    "training.lr": st.floats(0.1, 1.0),
    "training.optimizer": st.just("sgd"),
    "training.prox_mu": st.floats(0.1, 1.0),
    "privacy.dp": st.fixed_dictionaries({}, optional={"epsilon": st.floats(3, 9), "clip": st.floats(2, 3)}),
    "root.samples": st.integers(1, 99),
    "dataset.name": st.sampled_from(["synthetic", "heart"]),
    "partition.alpha": st.floats(0.2, 0.9),
    "model.hidden": st.lists(st.integers(1, 40), min_size=1, max_size=3).filter(lambda h: h != [64, 32]),
    "aggregator.name": st.sampled_from(["median", "caac"]),
    "attack.name": st.just("sign-flip"),
    "attack.fraction": st.floats(0.1, 0.5),
    "attack.start": st.integers(2, 9),
    "attack.clients": st.lists(st.sampled_from("abc"), min_size=1, max_size=2),
}


def nested(changes):
    values = {}
    for key, value in changes.items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return values


def shuffled(values, draw):
    """The same values with the keys of every mapping in another order."""
    if not isinstance(values, dict):
        return values
    return {key: shuffled(values[key], draw) for key in draw(st.permutations(list(values)))}


def one_of_them():
    """Some changes, at most one of each pair that excludes the other; an attack says who attacks, or nobody does."""

    def consistent(keys):
        if any(key.startswith("attack.") for key in keys):
            keys = keys | {"attack.name"} | ({"attack.fraction"} if "attack.clients" not in keys else set())
        return keys - ({"attack.fraction"} if "attack.clients" in keys else set())

    keys = st.sets(st.sampled_from(sorted(CHANGES)), max_size=4).map(consistent)
    return keys.flatmap(lambda keys: st.fixed_dictionaries({key: CHANGES[key] for key in sorted(keys)}))


@settings(max_examples=60, deadline=None)
@given(one_of_them(), one_of_them(), st.data())
def test_the_same_said_values_are_the_same_run_and_others_are_not(one, other, data):
    config, another = load_config(nested(one)), load_config(nested(other))
    assert (config.hash == another.hash) == (one == other)
    assert load_config(shuffled(nested(one), data.draw)).hash == config.hash
    written_out = load_config(json.loads(json.dumps(config.plain())))
    assert written_out.hash == config.hash, "defaults that are written out say nothing"
    assert (config.plain() == another.plain()) == (one == other)


def test_only_what_is_not_a_default_is_non_default():
    assert load_config({}).identity() == {}
    assert load_config({"name": "other", "aggregator": {"name": "fedavg"}, "training": {}}).identity() == {}
    said = load_config(SAID).identity()
    assert said == {**SAID, "partition": {"name": "dirichlet", "clients": 6}}


def test_turning_a_part_on_with_all_its_defaults_is_non_default():
    assert load_config({"privacy": {"dp": {}}}).identity() == {"privacy": {"dp": {}}}
    assert load_config({"aggregator": {"name": "median"}}).identity() == {"aggregator": {"name": "median"}}
    mix = {"attack": {"name": "mix", "fraction": 0.2}}
    assert load_config(mix).identity() == mix


@pytest.fixture
def upgraded(registries):
    """Give a member of a registry one more parameter, with a default, as a later version may."""

    def upgrade(registry, name, **parameters):
        member = registry.get(name)
        annotations = {key: type(value) for key, value in parameters.items()}
        params = type("Params", (member.Params,), {"__annotations__": annotations, **parameters})
        newer = type(member.__name__, (member,), {"Params": params, "__module__": member.__module__})
        newer.__qualname__ = member.__qualname__
        registry._members[name] = newer
        newer.name = name

    return upgrade


@pytest.mark.parametrize("section", [*SECTIONS, "part of a mixture"])
def test_a_new_parameter_with_a_default_leaves_finished_runs_theirs(upgraded, section):
    before = load_config(SAID)
    if section in SECTIONS:
        upgraded(SECTIONS[section][0], before.section(section)[0], brand_new=7)
    else:
        upgraded(SECTIONS["attack"][0], "noise", brand_new=7)
    after = load_config(SAID)
    assert "brand_new" in json.dumps(after.plain())
    assert after.hash == before.hash
    if section in SECTIONS:
        values = {**SAID, section: {**SAID.get(section, {}), "brand_new": 8}}
        assert load_config(values).hash != before.hash


def test_a_finished_run_is_not_repeated_when_a_parameter_is_added(upgraded, tiny, tmp_path):
    values = {**tiny, "aggregator": {"name": "caac"}, "rounds": 2}
    folder = run(load_config(values), tmp_path)
    before = folder.summary_path.stat().st_mtime_ns
    upgraded(aggregator_registry, "caac", brand_new=7)
    again = run(load_config(values), tmp_path)
    assert again.path == folder.path
    assert again.summary_path.stat().st_mtime_ns == before
    (event,) = run_many([load_config(values)], tmp_path, 1, lambda event: None)
    assert event.kind == "skipped"


@pytest.mark.parametrize("finished", [True, False])
def test_a_default_that_has_changed_is_not_mixed_with_the_old_one(tiny, tmp_path, finished):
    config = load_config({**tiny, "aggregator": {"name": "caac"}, "rounds": 2})
    folder = run(config, tmp_path)
    if not finished:
        folder.summary_path.unlink()
    recorded = yaml.safe_load(folder.config_path.read_text())
    recorded["aggregator"]["gamma"] = 0.125  # the default of another version
    recorded["aggregator"]["dropped_since"] = 1
    folder.write_config(recorded)
    match = rf"{folder.path}: was run with aggregator\.gamma = 0\.125.*; now it is .*: remove the folder"
    with pytest.raises(ConfigError, match=match) as caught:
        run(config, tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=match):
        run_many([config], tmp_path, 1, lambda event: None)
    old = load_config({**tiny, "aggregator": {"name": "caac", "gamma": 0.125}, "rounds": 2})
    assert find_folder(old, tmp_path).path != folder.path, "said, it is another run"


def test_a_run_that_version_0_1_finished_is_found_under_its_former_name(tiny, tmp_path):
    config = load_config({**tiny, "rounds": 2})
    folder = run(config, tmp_path)
    former = folder.path.rename(tmp_path / config.legacy_run_name)
    with pytest.warns(UserWarning, match=r"version 0\.1 finished are not run again"):
        assert run(config, tmp_path).path == former
    with pytest.warns(UserWarning, match="not run again"):
        (event,) = run_many([config], tmp_path, 1, lambda event: None)
    assert (event.kind, event.auroc) == ("skipped", RunFolder(former).summary().auroc)
    (former / "summary.json").unlink()
    assert find_folder(config, tmp_path).path == tmp_path / config.run_name, "unfinished, it begins anew"


def test_the_hash_of_version_0_1_is_known():
    """As version 0.1 wrote that of the protocol's own run."""
    assert load_config({}).legacy_hash == "6bcd9fd44c"


def test_parameters_that_version_0_1_did_not_have_are_no_part_of_its_hash():
    """As long as they have their defaults, its finished runs are recognised."""
    values = {"aggregator": {"name": "fedmed"}, "model": {"name": "dos-cnn"}}
    known = load_config(values).legacy_hash
    written_out = {
        "aggregator": {"name": "fedmed", "k_mad": 3.0},
        "model": {"name": "dos-cnn", "dense": [120, 84]},
    }
    assert load_config(written_out).legacy_hash == known == "62454f6aa0"
    assert load_config({**values, "model": {"name": "dos-cnn", "dense": [120]}}).legacy_hash != known
    assert load_config({**values, "aggregator": {"name": "fedmed", "k_mad": 5.0}}).legacy_hash != known


def test_the_hash_is_stable():
    """These name folders on people's disks: they change only where runs really are others."""
    assert load_config({}).hash == "44136fa355"
    assert load_config(SAID).hash == "8b8a664f25"


def test_a_run_of_a_version_without_faults_is_the_same_experiment():
    healthy = {"rounds": 3, "record": {}}
    assert experiment_of(healthy) == experiment_of({**healthy, "fault": {"name": "none", "fraction": 0.0}})
    broken = {"fault": {"name": "unit-error"}, "rounds": 3, "record": {"fault": {"broken": ["a"]}}}
    assert experiment_of(broken) != experiment_of(healthy)
