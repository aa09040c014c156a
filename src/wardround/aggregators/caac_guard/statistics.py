"""Which norms are far out, given how many samples clients have."""

from __future__ import annotations

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD

__all__ = ["excess_factors", "size_slope", "usual_log_norms"]

FAR, SPREADS = 100.0, 3.0
"""A norm is far out from a hundred times the usual on, and from three standard deviations of the log norms on.
Hospitals with a rare outcome send updates that are ten times as long as those of others."""


def size_slope(log_norms: Tensor, log_samples: Tensor) -> float:
    """Estimate how norms grow with sample counts, log on log: the median slope over all pairs of clients.

    Each pair counts as much as its sizes differ, up to half a unit: clients of about one size say little, and no
    outlier has much leverage. Larger clients take more steps in a round.

    Args:
        log_norms: N values.
        log_samples: N values.

    Returns:
        A slope within [0, 1]: the bounds keep small what a false count buys.

    >>> size_slope(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.0, 2.0, 3.0]))
    0.5
    """
    i, j = torch.triu_indices(len(log_norms), len(log_norms), 1)
    run = log_samples[i] - log_samples[j]
    apart = run.abs() > 0.1
    if not bool(apart.any()):
        return 0.0
    slopes, order = ((log_norms[i] - log_norms[j])[apart] / run[apart]).sort()
    weight = run[apart].abs().clamp(max=0.5)[order].cumsum(0)
    return float(slopes[torch.searchsorted(weight, weight[-1:] / 2)].clamp(0, 1))


def usual_log_norms(log_norms: Tensor, samples: Tensor) -> Tensor:
    """Estimate which log norm is usual in this round for a client of each one's size.

    Args:
        log_norms: N values.
        samples: N sample counts, as the clients report them.

    Returns:
        N log norms.

    >>> usual_log_norms(torch.tensor([0.0, 0.5, 4.0]), torch.tensor([1.0, 2.718281828, 7.389056099])).round(decimals=2)
    tensor([0., 1., 2.])
    """
    log_samples = samples.clamp(min=1).log()
    explained = size_slope(log_norms, log_samples) * log_samples
    return explained + (log_norms - explained).quantile(0.5)


def excess_factors(norms: Tensor, num_samples: Tensor, among: Tensor, judged: Tensor) -> Tensor:
    """How many times longer than usual each row is whose norm is far out; 1 for the others (N).

    Far out is more than `FAR` times what is usual for the client's size and more than `SPREADS` standard deviations
    (by the median absolute deviation) above it on a log scale. A client that no test could judge is far out if it is
    further above what is usual than all clients that passed the tests, and is brought back to as far as they are.

    Args:
        norms: N norms of the rows.
        num_samples: N sample counts, as the clients report them.
        among: N booleans: whose norms decide what is usual.
        judged: N booleans: whose parts could be compared.
    """
    present = among & (norms > 0)
    if not bool(present.any()):
        return torch.ones_like(norms)
    logs = norms.clamp_min(float(norms[present].min())).log()
    above = logs - usual_log_norms(logs, num_samples)
    above = above - above[present].quantile(0.5)
    spread = above[present].abs().quantile(0.5) / GAUSSIAN_MAD
    limit = torch.maximum(SPREADS * spread, torch.tensor(FAR, dtype=spread.dtype).log())
    excess = torch.where(above > limit, above, 0.0)
    passed = present & judged
    if bool(passed.any()):
        beyond = above - above[passed].amax().clamp_min(0)
        excess = torch.where(judged, excess, torch.maximum(excess, beyond.clamp_min(0)))
    return excess.exp()
