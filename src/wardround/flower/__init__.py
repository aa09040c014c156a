"""The same rules, records and resume across hospitals, on Flower. The only room that imports flwr.

Nothing is imported here: a hospital's client app starts anew for every message, and must start fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wardround.flower.rule_strategy import RuleStrategy

__all__ = ["strategy"]

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nobody is told that a hospital runs this, and nothing is installed at run time."""

os.environ.update(QUIET)  # flwr reads these when it is imported, which happens after this


def strategy(rule: str, /, **params: Any) -> RuleStrategy:
    """Any rule by name as a strategy for a Flower app: `strategy("caac").start(grid, arrays, num_rounds=10)`.

    `params` are the rule's own and those of `rule_strategy.RuleStrategy` (shares of nodes, keys, `root_fn`, …).

    >>> strategy("krum", f=1).rule
    krum(f=1)
    """
    from wardround.errors import require

    require("flwr", "flower")
    from wardround.flower.rule_strategy import RuleStrategy

    return RuleStrategy(rule, **params)
