"""No attack: the clean run, under the same interface."""

from __future__ import annotations

from wardround.attacks.base import Attack, register


@register("none")
class NoAttack(Attack):
    """Byzantine clients stay honest."""
