r"""Survival: time and event in one number, the Cox partial likelihood, and the C-index.

A patient's target is one signed number: the time until the event, or minus the time until the patient was lost from
sight (censored). So targets stay a vector that can be cut, shuffled and sent like classes. A vector of floating-point
numbers is always this; classes are whole numbers.

Cox, "Regression models and life-tables", Journal of the Royal Statistical Society B 34, 1972; Breslow's likelihood for
ties. Harrell et al., "Evaluating the yield of medical tests", JAMA 247, 1982.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "COX",
    "Concordance",
    "concordance",
    "cox_loss",
    "cox_losses",
    "cox_slopes",
    "encode",
    "events_of",
    "is_survival",
    "ranked_times",
    "times_of",
]

COX = "Cox partial likelihood within a batch, ties as Breslow, mean over patients"
"""The loss, in a run's record."""
PAIRS_AT_ONCE = 512
"""Rows that are compared with each other directly; all others are counted through a sorted list."""


def encode(times: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Times (n, not negative) and whether the event happened (n bool) as targets: n signed numbers.

    >>> encode(np.array([5.0, 3.0, 0.0]), np.array([True, False, False])).tolist()
    [5.0, -3.0, -0.0]
    """
    known = np.asarray(times, dtype=np.float64)
    return np.where(np.asarray(events, dtype=bool), known, -known)


def is_survival(targets: Tensor | np.ndarray) -> bool:
    """Are these targets times and events, not classes or findings?"""
    if isinstance(targets, Tensor):
        return targets.ndim == 1 and targets.is_floating_point()
    return targets.ndim == 1 and targets.dtype.kind == "f"


def times_of(targets: Tensor) -> Tensor:
    """The time of each patient, until the event or until it was censored."""
    return targets.abs()


def events_of(targets: Tensor) -> Tensor:
    """n bool: did the event happen? A time of 0 has a sign too."""
    return ~targets.signbit()


def ranked_times(targets: Tensor) -> Tensor:
    """The same targets with whole numbers from 1 in place of times, equal ones equal: exact in any precision.

    Only the order of times counts in the likelihood of Cox.

    >>> ranked_times(torch.tensor([250.5, -30.0, 30.0]))
    tensor([ 2., -1.,  1.])
    """
    ranks = times_of(targets).unique(return_inverse=True)[1].to(targets.dtype) + 1
    return torch.where(events_of(targets), ranks, -ranks)


@dataclass(frozen=True, eq=False)
class _RiskSets:
    """Who is still at risk when: positions by falling time, and where the ties of each position begin and end."""

    order: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, times: Tensor) -> _RiskSets:
        """Of … × n times."""
        ordered, order = times.sort(dim=-1, descending=True, stable=True)
        count = times.shape[-1]
        places = torch.arange(count, device=times.device).expand_as(order)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        ends = torch.ones_like(begins)
        ends[..., :-1] = begins[..., 1:]
        first = torch.where(begins, places, 0).cummax(-1).values
        last = torch.where(ends, places, count - 1).flip(-1).cummin(-1).values.flip(-1)
        return cls(order, first, last)

    def log_sums(self, scores: Tensor) -> Tensor:
        """The log of the summed exp(score) of all who are at risk at each time; scores in the order of `order`."""
        return scores.logcumsumexp(-1).gather(-1, self.last)


def cox_losses(scores: Tensor, targets: Tensor) -> Tensor:
    r"""Minus each patient's term of the log partial likelihood of Cox, ties as Breslow has them; 0 for a censored one.

    .. math:: \ell_i = -\delta_i \Big(s_i - \log \sum_{j: t_j \ge t_i} e^{s_j}\Big)

    Args:
        scores: … × n log hazards; higher means that the event comes sooner.
        targets: … × n signed times. A patient with target −∞ is none: it is at risk at no time.

    >>> cox_losses(torch.zeros(3), torch.tensor([1.0, 2.0, -3.0])).exp()
    tensor([3., 2., 1.])
    """
    sets = _RiskSets.of(_times_at_risk(targets))
    ordered = _present(scores, targets).gather(-1, sets.order)
    happened = events_of(targets).gather(-1, sets.order)
    losses = torch.where(happened, sets.log_sums(ordered) - ordered, 0.0)
    return torch.zeros_like(losses).scatter(-1, sets.order, losses)


def cox_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean of `cox_losses` over all patients of a batch, censored ones included."""
    return cox_losses(scores, targets).mean()


def cox_slopes(scores: Tensor, targets: Tensor) -> Tensor:
    r"""The derivative of the sum of `cox_losses` by each score, plus the patient's own event indicator:

    .. math:: \frac{\partial}{\partial s_k} \sum_i \ell_i + \delta_k = e^{s_k} \sum_{i: \delta_i = 1, t_i \le t_k}
        \Big(\sum_{j: t_j \ge t_i} e^{s_j}\Big)^{-1}

    So it stands where a sigmoid stands in the derivative of a class's loss. 0 for a target of −∞.
    """
    sets = _RiskSets.of(_times_at_risk(targets))
    ordered = _present(scores, targets).gather(-1, sets.order)
    happened = events_of(targets).gather(-1, sets.order)
    inverse = torch.where(happened, -sets.log_sums(ordered), -torch.inf)
    passed = inverse.flip(-1).logcumsumexp(-1).flip(-1).gather(-1, sets.first)
    slopes = (ordered + passed).exp()
    return torch.zeros_like(slopes).scatter(-1, sets.order, slopes)


def _times_at_risk(targets: Tensor) -> Tensor:
    return torch.where(targets == -torch.inf, -torch.inf, times_of(targets))


def _present(scores: Tensor, targets: Tensor) -> Tensor:
    return scores.masked_fill(targets == -torch.inf, -torch.inf)


@dataclass(frozen=True)
class Concordance:
    """Harrell's C-index, and of how many pairs it is made."""

    index: float
    """NaN where no pair can be compared."""
    pairs: int


def concordance(risks: np.ndarray, targets: np.ndarray) -> Concordance:
    r"""The share of comparable pairs in which the patient with the earlier event has the higher risk.

    A pair is comparable if the event of one is known to come before that of the other: its event happened at an earlier
    time than the other's last sight. At equal times this is so if exactly one of the two is an event. Equal risks count
    half. Counts are whole numbers, so that the result does not depend on the order of patients.

    Args:
        risks: n scores.
        targets: n signed times.

    >>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, -3.0]))
    Concordance(index=1.0, pairs=3)
    """
    times, happened = np.abs(targets), ~np.signbit(targets)
    # By falling time, at equal times censored ones first: an event is compared with all before those of its own time.
    order = np.lexsort((happened, -times))
    times, happened, risks = times[order], happened[order], risks[order]
    count = len(order)
    begins = np.ones(count, dtype=bool)
    begins[1:] = (times[1:] != times[:-1]) | (happened[1:] != happened[:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(count), 0))
    twice, pairs, first = 0, 0, 0
    before = np.empty(0)
    while first < count:
        last = min(first + PAIRS_AT_ONCE, count)
        while last < count and not begins[last]:  # those of one time stay together
            last += 1
        events = first + np.flatnonzero(happened[first:last])
        own = risks[events]
        twice += int(np.searchsorted(before, own).sum() + np.searchsorted(before, own, side="right").sum())
        comparable = np.arange(first, last) < start[events][:, None]
        among = risks[first:last]
        twice += int((((own[:, None] > among) * 2 + (own[:, None] == among)) * comparable).sum())
        pairs += int(start[events].sum())
        before = np.sort(np.concatenate([before, among]), kind="stable")
        first = last
    return Concordance(twice / 2 / pairs if pairs else float("nan"), pairs)
