"""The area under the ROC curve: one implementation for evaluation, practice and analysis."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["auroc"]


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    r"""Share of (positive, negative) pairs that the scores put in order; equal scores count half.

    .. math:: \frac{1}{PN} \sum_{i: y_i = 1} \sum_{j: y_j = 0} [s_i > s_j] + \tfrac12 [s_i = s_j]

    Counts are whole numbers, so the one division rounds once: the result does not depend on the order of samples.

    Args:
        scores: … × n, higher means more likely positive. A pair with a score that is not a number is out of order.
        positive: n bool, which samples are positive.

    Returns:
        One value per row of scores, float64; NaN where all samples are positive or none is.

    >>> auroc(torch.tensor([[0.1, 0.9, 0.5], [0.5, 0.5, 0.5]]), torch.tensor([False, True, True]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    high, low = scores[..., positive].contiguous(), scores[..., ~positive]
    numbers = (~low.isnan()).sum(-1, keepdim=True)
    low = low.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf")).sort(-1).values
    below = torch.searchsorted(low, high)
    not_above = torch.searchsorted(low, high, right=True).minimum(numbers)
    twice = (below + not_above).masked_fill(high.isnan(), 0).sum(-1)
    return twice.double() / 2 / (high.shape[-1] * low.shape[-1])
