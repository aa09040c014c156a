"""What a survival task does not have: classes. Rules and attacks that need them are refused by name."""

from __future__ import annotations

from wardround.aggregators.base import Aggregator
from wardround.attacks.base import Attack
from wardround.datasets.base import Task
from wardround.errors import ConfigError

__all__ = ["check_task"]


def check_task(task: Task, rule: Aggregator, attack: Attack | None = None) -> None:
    """Raise where the rule or the attack needs classes and the task has none.

    Args:
        task: What is predicted.
        rule: The aggregation rule.
        attack: The attack of a simulation; None where nobody plays one.
    """
    if task is not Task.SURVIVAL:
        return
    if rule.needs_practice_ground:
        raise ConfigError(
            f"aggregator '{rule.name}' practises on samples with classes, and a survival task has times and events; "
            "use a rule that needs updates only"
        )
    if rule.uses_predictions:
        raise ConfigError(
            f"aggregator '{rule.name}' looks at predicted probabilities of classes, and a survival model gives none; "
            "use a rule that needs updates only"
        )
    if attack is not None and attack.backdoors:
        raise ConfigError(
            f"attack '{attack.name}' gives triggered samples a class, and a survival task has none; label-flip, and "
            "attacks on updates, work with survival"
        )
