"""Members of the user's own in a federation: the server and each hospital name their own plug-ins."""

import pytest
import yaml

from wardround import models, plugins
from wardround.errors import ConfigError
from wardround.flower.config import load_federation, load_hospital

pytestmark = pytest.mark.usefixtures("registries")

CODE = """
from torch import nn

from wardround.aggregators.base import Aggregator, register as register_rule
from wardround.models.base import ModelSpec, register as register_model
from wardround.updates import Aggregation


@register_rule("first")
class First(Aggregator):
    def combine(self, updates, context):
        return Aggregation(updates.matrix[0].clone())


@register_model("line")
class Line(ModelSpec):
    def build(self, input_shape, outputs):
        return nn.Linear(input_shape[0], outputs)
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "site" / "mine.py"
    path.parent.mkdir()
    path.write_text(CODE)
    return path


def test_a_federation_with_a_rule_and_a_model_of_its_own(town, plugin):
    own = {"plugins": [str(plugin)], "aggregator": {"name": "first"}, "model": {"name": "line"}}
    folder = town(**own).run()
    assert folder.summary().status == "finished"
    assert folder.config()["plugins"][0]["source"] == str(plugin)


def test_files_are_seen_from_the_configuration(plugin, tmp_path):
    fed = {
        "plugins": ["mine.py"],
        "aggregator": {"name": "first"},
        "model": {"name": "line"},
        "federation": {"clients": 3},
    }
    (plugin.parent / "fed.yaml").write_text(yaml.safe_dump(fed))
    assert load_federation(plugin.parent / "fed.yaml").run.plugins[0].source == str(plugin)
    hospital = {"name": "north", "plugins": ["mine.py"], "dataset": {"name": "synthetic"}}
    (plugin.parent / "hospital.yaml").write_text(yaml.safe_dump(hospital))
    assert load_hospital(plugin.parent / "hospital.yaml").plugins[0].source == str(plugin)


def test_a_hospital_loads_its_own_plug_ins(plugin, tmp_path, monkeypatch):
    (tmp_path / "north.yaml").write_text(
        yaml.safe_dump({"name": "north", "plugins": ["site/mine.py"], "dataset": {"name": "synthetic"}})
    )
    load_hospital(tmp_path / "north.yaml")
    assert "line" in models.available()
    plugin.write_text("nowhere\n")
    monkeypatch.setattr(plugins, "_loaded", {})
    with pytest.raises(ConfigError, match=r"north\.yaml: .*mine\.py, line 1: NameError"):
        load_hospital(tmp_path / "north.yaml")
