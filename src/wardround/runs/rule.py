"""The rule of a run, from what its folder holds: what it declares, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wardround import aggregators
from wardround.aggregators import Aggregator
from wardround.errors import ParameterError
from wardround.runs.folder import RunFolder

__all__ = ["restore_rule", "rule_class"]


def rule_class(config: Mapping[str, Any]) -> type[Aggregator] | None:
    """The class of the rule that a run's config.yaml names; None where this installation does not know it."""
    section = config.get("aggregator")
    try:
        return aggregators.registry.get(section["name"]) if isinstance(section, Mapping) else None
    except (KeyError, ParameterError):
        return None


def restore_rule(folder: RunFolder) -> Aggregator:
    """Build the rule of a run as it was after the last finished round; as new where no round is finished."""
    section = dict(folder.config()["aggregator"])
    rule = aggregators.create(section.pop("name"), **section)
    checkpoint = folder.read_checkpoint()
    if checkpoint is not None:
        rule.load_state_dict(checkpoint["federation"]["rule"])
    return rule
