"""Members in a user's own file or package: known wherever a configuration goes, and clear when they are broken."""

import json
import pickle
import shutil
import sys
import textwrap

import pytest
import torch
import yaml

from wardround import Updates, aggregators, attacks, datasets, models, plugins
from wardround.datasets import partition
from wardround.errors import ConfigError, PluginError
from wardround.experiments import expand, find_runs, load_config, read_yaml
from wardround.experiments.events import run_and_report
from wardround.runs.runner import run

pytestmark = pytest.mark.usefixtures("registries")

RULE = '''
from wardround.aggregators.base import Aggregator, register
from wardround.updates import Aggregation


@register("{name}")
class First(Aggregator):
    """Whatever the first client says."""

    def combine(self, updates, context):
        return Aggregation({factor} * updates.matrix[0].clone())
'''


@pytest.fixture
def write(tmp_path):
    """Write a plug-in into a folder of its own and give its path."""

    def write(name="my_rule.py", code=None, rule="first", factor=1.0):
        path = tmp_path / "study" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(RULE.format(name=rule, factor=factor) if code is None else code))
        return path

    return write


def configure(path, tiny, **values):
    path.write_text(yaml.safe_dump({**tiny, "rounds": 2, **values}))
    return path


def delta(name):
    return aggregators.create(name).aggregate(Updates(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))).delta.tolist()


def test_a_file_beside_the_configuration_brings_a_rule(write, tiny, tmp_path):
    write()
    config = configure(
        tmp_path / "study" / "run.yaml", tiny, plugins=["my_rule.py"], aggregator={"name": "first"}
    )
    folder = run(load_config(read_yaml(config)), tmp_path / "runs")
    assert folder.summary().status == "finished"
    (recorded,) = folder.config()["plugins"]
    assert recorded["source"] == str(tmp_path / "study" / "my_rule.py")
    assert len(recorded["sha256"]) == 64


def test_the_run_folder_is_enough_to_resume(write, tiny, tmp_path):
    path = write()
    values = {**tiny, "rounds": 2, "plugins": [str(path)], "aggregator": {"name": "first"}}
    folder = run(load_config(values), tmp_path / "runs")
    again = load_config(read_yaml(folder.config_path))
    assert again.run_name == folder.path.name


def test_the_code_is_part_of_a_runs_identity_and_its_place_is_not(write, tiny, tmp_path):
    path = write()
    moved = tmp_path / "elsewhere.py"
    shutil.copy(path, moved)

    def identity(*entries):
        return load_config({**tiny, "plugins": [str(entry) for entry in entries]}).hash

    here = identity(path)
    assert here == identity(moved)
    assert here != load_config(tiny).hash == load_config({**tiny, "plugins": []}).hash
    write(factor=2.0)
    assert here != identity(path)


def test_a_run_is_not_resumed_with_other_code(write, tiny):
    path = write()
    plain = load_config({**tiny, "plugins": [str(path)]}).plain()
    write(factor=2.0)
    assert load_config(plain), "this process has the code that the run was started with"
    plugins.load(path)
    with pytest.raises(PluginError, match=r"my_rule\.py: the plug-in has changed since .* new run"):
        load_config(plain)


def test_an_edited_file_replaces_its_older_version(write):
    code = RULE.format(name="first", factor=1.0) + RULE.format(name="second", factor=1.0).replace(
        "First", "Second"
    )
    path = write(code=code)
    plugins.load(path)
    assert delta("first") == delta("second") == [1.0, 2.0]
    write(factor=2.0)
    plugins.load(path)
    assert delta("first") == [2.0, 4.0]
    assert "second" not in aggregators.available()
    write(code=code)
    plugins.load(path)
    assert delta("first") == delta("second") == [1.0, 2.0]


def test_the_same_code_twice_is_loaded_once(write, tmp_path, monkeypatch):
    path = write(
        code=RULE.format(name="first", factor=1.0) + "\nimport builtins\nbuiltins.loaded.append(1)\n"
    )
    monkeypatch.setattr("builtins.loaded", [], raising=False)
    shutil.copy(path, tmp_path / "copy.py")
    for entry in (path, str(path), tmp_path / "copy.py", path):
        plugins.load(entry)
    assert pickle.loads(pickle.dumps(aggregators.registry.get("first"))) is aggregators.registry.get("first")
    import builtins

    assert builtins.loaded == [1]


def test_a_user_may_have_imported_the_file_before(write, monkeypatch):
    path = write("imported_before.py")
    monkeypatch.syspath_prepend(path.parent)
    __import__("imported_before")
    plugins.load(path)
    plugins.load("imported_before")
    assert delta("first") == [1.0, 2.0]
    del sys.modules["imported_before"]


def test_every_kind_of_member(write, tiny, tmp_path):
    path = write(
        code="""
        import numpy as np
        from pydantic import Field
        from torch import nn

        from wardround import datasets
        from wardround.attacks.base import Attack, register as register_attack
        from wardround.datasets.base import DatasetSource, Task, register as register_dataset
        from wardround.datasets.partition import Iid, register as register_partition
        from wardround.models.base import ModelSpec, Parameters, register as register_model

        @register_attack("backwards")
        class Backwards(Attack):
            def craft(self, own, knowledge):
                return -own

        @register_dataset("few")
        class Few(DatasetSource):
            task = Task.BINARY
            def load(self, seed):
                return datasets.create("synthetic", samples=400, features=6).load(seed)

        @register_partition("alike")
        class Alike(Iid):
            pass

        class Network(nn.Module):
            def __init__(self, inputs, outputs):
                super().__init__()
                self.layer = nn.Linear(inputs, outputs)
            def forward(self, inputs):
                return self.layer(inputs)

        @register_model("line")
        class Line(ModelSpec):
            class Params(Parameters):
                width: int = Field(1, ge=1)
            def build(self, input_shape, outputs):
                return Network(input_shape[0], outputs)
        """
    )
    config = load_config(
        {
            "plugins": [str(path)],
            "dataset": {"name": "few"},
            "partition": {"name": "alike", "clients": 5},
            "model": {"name": "line", "width": 2},
            "attack": {"name": "backwards", "fraction": 0.2},
            "rounds": 2,
            "engine": "processes",
        }
    )
    assert run(config, tmp_path / "runs").summary().status == "finished"
    assert "backwards" in attacks.available()
    assert "few" in datasets.available()
    assert "alike" in partition.available()
    assert "line" in models.available()
    with pytest.raises(ConfigError, match="model 'line': width: must be greater than or equal to 1"):
        models.create("line", width=0)


BROKEN = [
    ("x = 1\ny = 2\nz = nowhere\n", r"my_rule\.py, line 3: NameError: name 'nowhere' is not defined"),
    ("x = 1\ndef f(:\n    pass\n", r"my_rule\.py, line 2: SyntaxError: "),
    (
        "import not_there_at_all\n",
        r"my_rule\.py, line 1: ModuleNotFoundError: No module named 'not_there_at_all'",
    ),
    ("x = 1\n", r"my_rule\.py: registers nothing; put @register"),
    ("import sys\nsys.exit('no')\n", r"my_rule\.py, line 2: SystemExit: no"),
    ("\0", r"my_rule\.py"),
    (
        "from wardround.aggregators.base import Aggregator, register\n\n@register('empty')\nclass Empty(Aggregator):\n"
        "    pass\n",
        r"aggregator 'empty' \(.*my_rule\.py, line 3\): Empty must define combine\(updates, context\)",
    ),
    (
        "from wardround.aggregators.base import register\n\n@register('other')\nclass Other:\n    pass\n",
        r"my_rule\.py, line 3: aggregator 'other': Other must be a class derived from Aggregator",
    ),
    (
        "from wardround.aggregators.base import Aggregator, register\n\n@register\nclass Nameless(Aggregator): ...\n",
        r"my_rule\.py, line 3: aggregator: the name is missing; write @register\(\"its-name\"\)",
    ),
    (
        RULE.format(name="first", factor=1.0) + "    class Params:\n        pass\n",
        r"aggregator 'first': First.Params must be a class derived from Parameters",
    ),
    (
        RULE.format(name="krum", factor=1.0),
        r"my_rule\.py, line 6: aggregator 'krum' is registered twice: by wardround\.aggregators\.krum and by "
        r".*my_rule\.py; choose another name",
    ),
]


@pytest.mark.parametrize(("code", "says"), BROKEN)
def test_a_broken_plug_in_says_file_and_line_every_time(code, says, write, tiny):
    before = aggregators.available()
    path = write(code=code)
    for _ in range(3):
        with pytest.raises(PluginError, match=says):
            plugins.load(path)
        with pytest.raises(PluginError, match=r"f\.yaml: .*my_rule\.py"):
            load_config({**tiny, "plugins": [str(path)]}, "f.yaml")
    assert aggregators.available() == before, "nothing of it stays behind"


def test_what_a_broken_plug_in_registered_before_its_fault_is_gone(write):
    path = write()
    plugins.load(path)
    write(code=RULE.format(name="first", factor=2.0) + "\nnowhere\n")
    with pytest.raises(PluginError, match=r"my_rule\.py, line 13: NameError"):
        plugins.load(path)
    assert delta("first") == [1.0, 2.0], "as before"


def test_two_plug_ins_cannot_share_a_name(write):
    plugins.load(write("one.py"))
    with pytest.raises(PluginError, match=r"'first' is registered twice: by .*one\.py and by .*two\.py"):
        plugins.load(write("two.py", factor=2.0))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("my_rule.py", r"plugins: expected a list, for example \[my_rule\.py\], got 'my_rule\.py'"),
        ([3], r"plugins: expected a file \(my_rule\.py\) or a module \(package\.module\), got 3"),
        ([{"file": "x.py"}], r"plugins: expected a file"),
        (
            ["nowhere.py"],
            r"nowhere\.py: no such plug-in; a file is seen from the folder of its configuration",
        ),
        (["/tmp/"], r"a folder; name a file in it"),
        (["not_there.rules"], r"plug-in not_there\.rules: no module named 'not_there'; install it"),
    ],
)
def test_what_is_no_plug_in(entries, says, tiny):
    with pytest.raises(ConfigError, match=says):
        load_config({**tiny, "plugins": entries})


def test_a_module(write, tmp_path, monkeypatch, tiny):
    write("ward_one/__init__.py", code="")
    write("ward_one/rules.py", code="from ward_one import helper\n" + RULE.format(name="first", factor=1.0))
    helper = write("ward_one/helper.py", code="")
    monkeypatch.syspath_prepend(tmp_path / "study")
    config = load_config({**tiny, "plugins": ["ward_one.rules"], "aggregator": {"name": "first"}})
    assert config.plugins[0].source == "ward_one.rules"
    assert load_config(config.plain()).hash == config.hash

    write("ward_two/__init__.py", code="from ward_two import helper")
    helper = write("ward_two/helper.py", code="a = 1\nnowhere\n")
    for _ in range(2):
        with pytest.raises(PluginError, match=r"ward_two/helper\.py, line 2: NameError") as caught:
            plugins.load("ward_two")
        assert (caught.value.file, caught.value.line) == (helper, 2)
    write("ward_three/__init__.py", code="")
    for _ in range(2):
        with pytest.raises(PluginError, match="plug-in ward_three: registers nothing"):
            plugins.load("ward_three")


@pytest.fixture
def install(write, tmp_path, monkeypatch):
    """A package with an entry point, as pip would leave it behind."""

    def install(code):
        write("ward_installed.py", code=code)
        write(
            "ward_installed-1.2.dist-info/METADATA",
            code="Metadata-Version: 2.1\nName: ward-installed\nVersion: 1.2\n",
        )
        write(
            "ward_installed-1.2.dist-info/entry_points.txt",
            code="[wardround.plugins]\nward = ward_installed\n",
        )
        monkeypatch.syspath_prepend(tmp_path / "study")
        monkeypatch.setattr(plugins, "_installed", None)
        monkeypatch.setattr(aggregators.registry, "_loaded", False)

    yield install
    sys.modules.pop("ward_installed", None)


def test_an_installed_package_needs_no_mention(install, tiny, tmp_path):
    install(RULE.format(name="first", factor=1.0))
    assert "first" in aggregators.available()
    folder = run(load_config({**tiny, "rounds": 1, "aggregator": {"name": "first"}}), tmp_path / "runs")
    recorded = folder.config()["record"]["installed_plugins"]["ward"]
    assert recorded["source"] == "ward_installed"
    assert recorded["package"] == "ward-installed 1.2"


def test_a_broken_installed_package_is_an_error_every_time(install):
    install("a = 1\nnowhere\n")
    for _ in range(2):
        with pytest.raises(
            PluginError,
            match=r"installed plug-in 'ward' \(ward-installed 1\.2\): .*ward_installed\.py, line 2: Name",
        ):
            aggregators.available()


def test_a_matrix_names_members_of_plug_ins_in_its_axes(write, tiny, tmp_path):
    write()
    matrix = tmp_path / "study" / "matrix.yaml"
    tiny["aggregator"] = {"name": "caac", "t_boot": 3}
    values = {"base": {**tiny, "plugins": ["my_rule.py"]}, "axes": {"aggregator.name": ["first", "fedavg"]}}
    matrix.write_text(yaml.safe_dump(values))
    configs = expand(read_yaml(matrix), "matrix.yaml")
    assert [config.aggregator["name"] for config in configs] == ["first", "fedavg"]


def test_a_worker_without_the_plug_in_says_so(write, tiny, tmp_path, monkeypatch):
    path = write()
    config = load_config({**tiny, "plugins": [str(path)]})
    monkeypatch.setattr(plugins, "_loaded", {})  # as in another process
    path.unlink()
    event = run_and_report(config.run_name, config.plain(), tmp_path / "runs", lambda event: None)
    assert (event.kind, event.run) == ("failed", config.run_name)
    assert "my_rule.py: no such plug-in" in event.reason


def test_runs_are_read_where_the_plug_in_is_not(write, tiny, tmp_path, monkeypatch):
    """Nor is it loaded where it is: looking at a run that somebody sent must not run their code."""
    from wardround.analysis import analyze, load_runs
    from wardround.live.run import RunFeed
    from wardround.protocols import papers
    from wardround.report.contents import collect

    path = write()
    values = {**tiny, "rounds": 2, "plugins": [str(path)], "aggregator": {"name": "first"}}
    folder = run(load_config(values), tmp_path / "runs")
    for member in ("first",):
        del aggregators.registry._members[member]
    monkeypatch.setattr(plugins, "_loaded", {})
    path.write_text("raise SystemExit")
    assert [found.path for found in find_runs([tmp_path / "runs"])] == [folder.path]
    runs = load_runs([tmp_path / "runs"])
    assert "first" in json.dumps(analyze(runs, papers=papers()).plain())
    assert collect(runs, papers()).all_figures
    feed = RunFeed(folder.path, "run")
    feed.poll()
    assert feed.describe()["rule"] == "first"
