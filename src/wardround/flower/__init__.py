"""Federations across hospitals on Flower, with the same rules, records and resume as a simulation.

The only package that imports flwr. This module imports nothing heavy: a process that only passes messages on, such
as a hospital's client app, must start fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wardround.flower.rule_strategy import RuleStrategy

__all__ = ["strategy"]

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No telemetry and no update checks leave a hospital, and nothing is installed at run time."""

os.environ.update(OFFLINE)  # flwr reads these when it is imported, which happens after this


def strategy(rule: str, /, **params: Any) -> RuleStrategy:
    """Return a rule as a strategy for a Flower app: `strategy("caac").start(grid, arrays, num_rounds=10)`.

    Args:
        rule: Name of the rule.
        params: The rule's own parameters, and those of `rule_strategy.RuleStrategy` (`root_fn`, `fraction_train`, …).

    >>> strategy("krum", f=1).rule
    krum(f=1)
    """
    from wardround.errors import require

    require("flwr", "flower")
    from wardround.flower.rule_strategy import RuleStrategy

    return RuleStrategy(rule, **params)
