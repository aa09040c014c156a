"""The server's own side is tried out before anybody is waited for."""

import pytest

pytest.importorskip("flwr")

from wardround.errors import ConfigError
from wardround.flower.config import federation_from
from wardround.flower.server.run import run_federation
from wardround.flower.server.server_side import check_server_side, known_shape

DATA = {"dataset": {"name": "synthetic", "samples": 100, "features": 4}, "model": {"name": "logistic"}}


class NobodyIsAsked:
    """A grid that must not be used."""

    def __getattr__(self, name):
        raise AssertionError(f"the grid was asked for {name}")


def test_a_root_set_that_is_too_large_is_said_before_hospitals_are_waited_for(tmp_path):
    values = {
        **DATA,
        "aggregator": {"name": "fedbnp"},
        "root": {"samples": 500},
        "federation": {"clients": 4},
    }
    with pytest.raises(ConfigError, match="the root set takes all 10 validation samples"):
        run_federation(federation_from(values), NobodyIsAsked(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_model_is_known_by_data_by_schema_or_not_at_all():
    assert check_server_side(federation_from({**DATA, "federation": {"clients": 3}})).weights == 5
    schema = {"columns": [{"name": "age"}], "label": {"name": "died", "classes": ["0", "1", "2"]}}
    by_schema = federation_from(
        {"model": {"name": "logistic"}, "federation": {"clients": 3, "schema": schema}}
    )
    assert known_shape(by_schema) == ((1,), "multi-class", 3)
    assert check_server_side(by_schema).weights == 6
    nothing = check_server_side(federation_from({"federation": {"clients": 3}}))
    assert (nothing.data, nothing.weights) == (None, None)
