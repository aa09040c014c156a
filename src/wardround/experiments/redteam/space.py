"""Where the red team looks: which attack, with which parameters, by how many clients, from when on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wardround import attacks
from wardround.attacks.search_space import Choice, Draw, Range, Space, within

__all__ = ["candidates", "defaults", "draw_attack", "variants"]

LATEST = 0.75  # an attack that begins after this share of the rounds has little time to show
FEWEST = 0.25  # and so has one of fewer than this share of the most Byzantine clients allowed


def candidates(without: Sequence[str] = ()) -> tuple[str, ...]:
    """Every registered attack but the one that does nothing and those that are left out."""
    return tuple(name for name in attacks.available() if name not in ("none", *without))


def draw_attack(draw: Draw, rounds: int, max_fraction: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """The `attack` section of a configuration; at most `max_fraction` of the clients are Byzantine.

    Attacks in `without` are not drawn, nor are they parts of a mixture.
    """
    draw = _leaving_out(draw, without)
    name = draw("attack", Choice(candidates()), None)
    return {
        "name": name,
        "fraction": draw("fraction", Range(FEWEST * max_fraction, max_fraction), max_fraction),
        "start": draw("start", Range(1, max(1, int(LATEST * rounds)), whole=True), 1),
        **attacks.registry.get(name).search(within(draw, name)),
    }


def _leaving_out(draw: Draw, without: Sequence[str]) -> Draw:
    def drawn(key: str, space: Space, default: Any) -> Any:
        if isinstance(space, Choice):
            space = Choice(tuple(value for value in space.values if value not in without))
            default = space.values[0] if default in without else default
        return draw(key, space, default)

    return drawn if without else draw


def defaults(name: str, rounds: int, max_fraction: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Key → value of the draw that gives an attack with its default parameters, at full strength from round 1.

    A part of a mixture that is left out gives way to another.

    >>> defaults("sign-flip", rounds=20, max_fraction=0.4)
    {'attack': 'sign-flip', 'fraction': 0.4, 'start': 1, 'sign-flip.scale': 10.0}
    """
    drawn: dict[str, Any] = {}

    def usual(key: str, space: Space, default: Any) -> Any:
        drawn[key] = name if key == "attack" else default
        return drawn[key]

    draw_attack(usual, rounds, max_fraction, without)
    return drawn


def variants(
    name: str, rounds: int, max_fraction: float, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The defaults of an attack, and the same with all that its rows may keep of the attackers' honest ones.

    >>> [drawn.get("ipm.keep") for drawn in variants("ipm", rounds=20, max_fraction=0.4)]
    ['nothing', 'residual', 'norm']
    """
    usual = defaults(name, rounds, max_fraction, without)
    key = f"{name}.keep"
    return [usual, *({**usual, key: keep} for keep in ("residual", "norm") if key in usual)]
