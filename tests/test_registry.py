import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import Field, model_validator

from wardround import aggregators, attacks
from wardround.errors import MissingExtra, ParameterError, PluginError, require
from wardround.registry import Configurable, Parameters, Registry


class Thing(Configurable):
    class Params(Parameters):
        size: int = Field(3, ge=1)
        mode: str = "plain"


def things() -> Registry:
    registry = Registry("thing", "wardround.models")
    registry.register("box")(Thing)
    return registry


def test_defaults_are_filled_in_and_parameters_are_frozen():
    box = things().create("box")
    assert box.params.size == 3
    with pytest.raises(Exception, match="frozen"):
        box.params.size = 4


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": 0}, r"thing 'box': size: must be greater than or equal to 1, got 0"),
        ({"sizes": 2}, r"unknown key 'sizes'; did you mean 'size'\? known: mode, size"),
        ({"size": "many"}, r"size: must be a valid integer"),
    ],
)
def test_a_wrong_parameter_says_what_would_be_right(params, message):
    with pytest.raises(ParameterError, match=message):
        things().create("box", **params)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ParameterError, match=r"unknown aggregator 'fedavgg'; did you mean 'fedavg'\?.*caac"):
        aggregators.create("fedavgg")
    with pytest.raises(ParameterError, match=r"unknown attack 'sign_flip'; did you mean 'sign-flip'"):
        attacks.create("sign_flip")


def test_two_members_cannot_share_a_name():
    registry = things()

    class Other(Configurable):
        pass

    with pytest.raises(PluginError, match="thing 'box' is registered twice"):
        registry.register("box")(Other)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a member a file; write(file, text) adds a file."""
    folder = tmp_path / "ward_things"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from wardround.registry import Configurable, Registry\nregistry = Registry('thing', 'ward_things')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def write(file, name=None, text=""):
        member = f"@registry.register('{name}')\nclass Thing(Configurable):\n    pass\n" if name else ""
        (folder / file).write_text(f"from ward_things import Configurable, registry\n\n{member}{text}")
        importlib.invalidate_caches()

    yield write
    for module in [module for module in sys.modules if module.startswith("ward_things")]:
        del sys.modules[module]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere\n", r"ward_things/middle\.py, line 6: NameError: name 'nowhere' is not defined"),
        ("def f(:\n", r"ward_things/middle\.py, line 6: SyntaxError: "),
        (
            "import not_there\n",
            r"ward_things/middle\.py, line 6: ModuleNotFoundError: No module named 'not_there'",
        ),
        ("from ward_things import helper\n", r"ward_things/helper\.py, line 3: ZeroDivisionError"),
    ],
)
def test_a_broken_module_is_an_error_every_time(package, text, says):
    """A list of those that could be loaded would pass for the list of all."""
    package("early.py", "early")
    package("helper.py", text="1 / 0\n" if "helper" in text else "")
    package("middle.py", "middle", text)
    package("zuletzt.py", "zuletzt")
    registry = importlib.import_module("ward_things").registry
    for ask in (registry.available, lambda: registry.get("early"), lambda: registry.create("nobody")) * 2:
        with pytest.raises(PluginError, match=says):
            ask()
    package("helper.py")
    package("middle.py", "middle", "\n# fixed: longer than before\n")
    assert registry.available() == ["early", "middle", "zuletzt"]


def test_two_modules_of_ours_cannot_share_a_name(package):
    package("one.py", "same")
    package("two.py", "same")
    registry = importlib.import_module("ward_things").registry
    for _ in range(2):
        with pytest.raises(
            PluginError, match=r"two\.py, line 3: thing 'same' is registered twice: by .*one\.py"
        ):
            registry.available()


def test_a_second_thread_waits_for_all_members(package):
    package("early.py", "early")
    package("slow.py", "slow", "import time\ntime.sleep(0.3)\n")
    registry = importlib.import_module("ward_things").registry
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(registry.available) for _ in range(2)]
    assert [answer.result() for answer in asked] == [["early", "slow"]] * 2


def test_available_is_sorted_and_complete():
    names = aggregators.available()
    assert names == sorted(names)
    assert {"fedavg", "mean", "caac", "caac-mag", "caac-dir", "caac-temp", "caac-mag+dir"} <= set(names)


def test_a_missing_extra_says_the_command():
    with pytest.raises(MissingExtra, match=r"pip install 'wardround\[flower\]'"):
        require("surely_not_there", "flower")


def test_a_broken_package_is_not_mistaken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import this_is_missing_inside")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="this_is_missing_inside"):
        require("half_there", "fast")


def test_a_former_name_works_with_a_warning_that_gives_the_present_one():
    class Renamed(Configurable):
        class Params(Parameters):
            renamed = {"length": "size"}

            size: int = Field(3, ge=1)

    registry = Registry("thing", "wardround.models")
    registry.register("bag")(Renamed)
    with pytest.warns(FutureWarning, match="parameter 'length' is now called 'size'"):
        assert registry.create("bag", length=5).params.size == 5
    with (
        pytest.warns(FutureWarning, match="length"),
        pytest.raises(ParameterError, match=r"thing 'bag': size: must be greater than or equal to 1, got 0"),
    ):
        registry.create("bag", length=0)
    with pytest.raises(ParameterError, match="'length' is the former name of 'size': give only 'size'"):
        registry.create("bag", length=5, size=5)
    with pytest.raises(ParameterError, match=r"unknown key 'lengths'; .*known: size$"):
        registry.create("bag", lengths=5)
    assert registry.describe("bag") == {"size": 3}


class Needing(Parameters):
    who: str
    far: float = 0.0
    much: float = 0.0

    @model_validator(mode="after")
    def _something(self):
        if not self.far and not self.much:
            raise ValueError("nothing moves")
        return self


def test_what_must_be_given_is_no_default_even_where_defaults_alone_are_not_allowed():
    assert Needing(who="a", far=2.0).non_default() == {"who": "a", "far": 2.0}
