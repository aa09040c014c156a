"""How far attacks may be turned: every one says it, and whatever is drawn is a valid attack."""

from typing import Annotated

import pytest

from wardround import attacks
from wardround.attacks.search_space import FIXED, Choice, Range, draw_parameters
from wardround.errors import ParameterError
from wardround.registry import Parameters

ALL = [name for name in attacks.available() if name != "none"]


def lowest(key, space, default):
    return space.values[0] if isinstance(space, Choice) else _typed(space, space.low)


def highest(key, space, default):
    return space.values[-1] if isinstance(space, Choice) else _typed(space, space.high)


def _typed(space, value):
    return int(value) if space.whole else float(value)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("draw", [lowest, highest, lambda key, space, default: default])
def test_whatever_is_drawn_is_a_valid_attack(name, draw):
    drawn = attacks.registry.get(name).search(draw)
    assert drawn, "every attack has something to search"
    attacks.create(name, **drawn)


@pytest.mark.parametrize("name", ALL)
def test_defaults_lie_inside_their_ranges(name):
    def check(key, space, default):
        if isinstance(space, Choice):
            assert default in space.values, key
        else:
            assert space.low <= default <= space.high, key
            assert space.low < space.high
            assert not space.log or space.low > 0
        return default

    attacks.registry.get(name).search(check)


def test_the_defaults_that_are_drawn_are_the_attack_as_it_is():
    for name in ALL:
        drawn = attacks.registry.get(name).search(lambda key, space, default: default)
        assert attacks.create(name, **drawn).params == attacks.create(name).params


def test_what_is_declared_goes_above_what_is_derived():
    class Params(Parameters):
        switch: bool = False
        kept: Annotated[int, FIXED] = 3
        whole: Annotated[int, Range(1, 9, log=True)] = 3

    found = draw_parameters(Params, lambda key, space, default: space)
    assert found == {"switch": Choice((False, True)), "whole": Range(1, 9, log=True, whole=True)}


def test_a_parameter_without_a_range_is_refused():
    class Params(Parameters):
        strength: float = 1.0

    with pytest.raises(ParameterError, match=r"Params: 'strength' does not say how far"):
        draw_parameters(Params, lowest)
