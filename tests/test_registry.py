import pytest
from pydantic import Field

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
