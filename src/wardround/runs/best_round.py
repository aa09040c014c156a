"""The model of the round that was best on validation: kept during a run, since later rounds move the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from wardround.federation.schedule import Schedule
from wardround.records import RoundRecord, main_value

__all__ = ["BEST", "BEST_BEFORE", "BestRound", "is_extra_evaluation"]

BEST = "best"
"""The key of a checkpoint under which the best model so far is kept."""
BEST_BEFORE = "best_before"
"""What was best before the last round, where that round was evaluated only because it was the last: a run that is
given more rounds would not have looked at it."""


class BestRound:
    """The best model so far by AUROC or C-index on validation; of equal ones the first, as in summary.json."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """`state`: what `state_dict` gave; None: nothing was evaluated yet."""
        self.round, self.auroc = 0, -math.inf
        self.weights: Tensor | None = None
        if state is not None:
            self.round, self.auroc = int(state["round"]), float(state["auroc"])
            self.weights = state["weights"]

    def consider(self, record: RoundRecord, weights: Tensor | None) -> None:
        """Keep the model after this round if it is better than all before.

        Args:
            record: the round; one without an AUROC on validation is never the best.
            weights: the model after it, as others can use it; None where only the clients know it.
        """
        auroc = main_value(record.validation)
        if auroc is not None and weights is not None and auroc > self.auroc:
            self.round, self.auroc, self.weights = record.round, auroc, weights

    def state_dict(self) -> dict[str, Any] | None:
        """Plain numbers and a tensor; None where there is no best round."""
        if self.weights is None:
            return None
        return {"round": self.round, "auroc": self.auroc, "weights": self.weights}


def is_extra_evaluation(schedule: Schedule, round: int) -> bool:
    """Was a round evaluated only because it was the run's last one?"""
    return round == schedule.rounds and round % schedule.evaluate_every != 0
