"""The server's own samples: where they come from, and what is said where there are none."""

from dataclasses import replace

import pytest

from wardround.errors import ConfigError
from wardround.experiments import load_config
from wardround.federation.schedule import Schedule
from wardround.federation.server_data import ServerData
from wardround.runs.runner import build_rule, load_dataset


def server_data(rule, validation_rows):
    config = load_config({"dataset": {"name": "synthetic", "samples": 200}, "aggregator": {"name": rule}})
    dataset = load_dataset(config)
    few = replace(
        dataset.validation,
        inputs=dataset.validation.inputs[:validation_rows],
        targets=dataset.validation.targets[:validation_rows],
        patient_groups={},
    )
    return ServerData(replace(dataset, validation=few), build_rule(config), Schedule(1, root_samples=4))


def test_trusted_samples_are_not_validated_on():
    data = server_data("fltrust", 10)
    assert len(data.root.rows) == 4
    assert sorted([*data.root.rows.tolist(), *data.validation_rows.tolist()]) == list(range(10))


def test_a_rule_that_wants_trusted_samples_is_refused_where_nothing_is_validated_on():
    with pytest.raises(ConfigError, match=r"'fltrust' wants trusted samples.*'synthetic' is split without"):
        server_data("fltrust", 0)
    assert server_data("median", 0).root is None
