"""Whether the clients of a run are asked to split their updates by outcome."""

from __future__ import annotations

from wardround.aggregators.base import Aggregator
from wardround.datasets.base import Task
from wardround.errors import ConfigError
from wardround.privacy.protection import Protection
from wardround.training.base import TrainingParams

__all__ = ["splits_by_outcome"]

MOST_OUTCOMES = 10
"""Updates are not split into more parts than this: each costs as much memory and traffic as the update."""


def splits_by_outcome(
    rule: Aggregator, training: TrainingParams, protection: Protection, task: str, outputs: int
) -> bool:
    """Are updates split by outcome: somebody asks for it, outcomes are few, and nothing hides the parts?

    Args:
        rule: May ask for it, or need it.
        training: May ask for it, or forbid it.
        protection: May hide updates.
        task: Of the dataset.
        outputs: Of the model.

    Raises:
        ConfigError: Somebody insists on it, and it cannot be.
    """
    insists = None
    if rule.needs_parts:
        insists = f"aggregator '{rule.name}' with strata"
    elif training.strata == "outcome":
        insists = "training.strata"
    why_not = _why_not(rule, training, protection, task, outputs)
    if why_not is not None and insists is not None:
        raise ConfigError(f"{insists} wants updates split by outcome, but {why_not}")
    return why_not is None and (rule.client_policy.by_outcome or insists is not None)


def _why_not(
    rule: Aggregator, training: TrainingParams, protection: Protection, task: str, outputs: int
) -> str | None:
    if training.strata == "none":
        return "training.strata is none"
    if task not in (Task.BINARY.value, Task.MULTICLASS.value):
        return f"a {task} task has no outcomes that exclude each other"
    if outputs > MOST_OUTCOMES:
        return f"{outputs} outcomes are more than {MOST_OUTCOMES}: each part costs as much as an update"
    if protection.hides_updates:
        return f"privacy.mode {protection.params.mode} hides updates"
    if protection.params.dp is not None:
        return "privacy.dp covers whole updates, not their parts"
    if training.client_momentum:
        return "training.client_momentum: an average of updates has no parts"
    if training.method == "scaffold" and rule.needs_parts:
        return "training.method scaffold: its control variates belong to no patient, so parts are not all of an update"
    return None
