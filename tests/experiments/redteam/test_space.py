"""The space of attacks that a red team searches."""

import pytest

from wardround.errors import ConfigError, WardroundError
from wardround.experiments.redteam.space import candidates, defaults, draw_attack


def test_every_attack_can_be_drawn_and_is_a_valid_section(plan, tiny):
    for name in candidates():
        drawn = defaults(name, rounds=6, max_fraction=0.4)
        section = draw_attack(lambda key, space, default, drawn=drawn: drawn[key], 6, 0.4)
        assert section["name"] == name
        assert section["fraction"] == 0.4
        assert plan(tiny).config(section, 200).attack["start"] == 1


def test_attacks_can_be_left_out_of_mixtures_too(plan, tiny):
    offered = []

    def last(key, space, default):
        if not hasattr(space, "values"):
            return default
        offered.extend(space.values)
        return "mix" if key == "attack" else space.values[-1] if space.values else default

    section = draw_attack(last, 6, 0.4, without=("alie", "slow-drift"))
    assert section["name"] == "mix"
    assert {"noise", "mix"} <= set(offered)
    assert not {"alie", "slow-drift"} & set(offered)
    assert plan(tiny, without=("alie",)).without == ("alie",)
    with pytest.raises(WardroundError, match="unknown attack 'ally'; did you mean 'alie'"):
        plan(tiny, without=("ally",)).check()
    with pytest.raises(ConfigError, match="no attack is left to try"):
        plan(tiny, without=set(candidates()) - {"mix"}).check()  # a mixture of nothing
