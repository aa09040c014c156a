"""No attack: the clean run, under the same interface."""

from __future__ import annotations

from wardround.attacks.base import HonestUpdate, register


@register("none")
class NoAttack(HonestUpdate):
    """Nobody attacks, whatever fraction or clients say."""

    is_harmless = True
