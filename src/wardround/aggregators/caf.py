"""CAF: turn down the rows that stretch the round most in one direction, until enough weight is gone."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators.base import ByzantineBound, Context, MeasurementPlan, register
from wardround.updates import Aggregation, Updates

MANY = 64
"""From so many rows on scipy would use threads of its own."""


@register("caf")
class CovarianceFilter(ByzantineBound):
    r"""Weighted mean whose covariance has the least top eigenvalue, by repeated down-weighting.

    Start with c_i = 1. While Σ c_i > N−2f: with the weighted mean μ and covariance Σ_c of the rows, let (λ, v) be the
    top eigenpair of Σ_c; remember μ where λ is the least so far; then

    .. math:: c_i \leftarrow c_i \Big(1 - \frac{\tau_i}{\max_{j: c_j > 0} \tau_j}\Big), \qquad
        \tau_i = \langle v, U_i - \mu \rangle^2

    The covariance is never formed: eigenvectors come from the N × N Gram matrix, exactly. (ByzFL's code takes one
    step of the power method from a random start instead, so its results differ from run to run.) Needs N ≥ 2f+1. The
    rule needs no bound on the variance of honest clients, hence "agnostic". Scores are a row's squared part along
    the first v.

    Allouah, Guerraoui, Stephan, "Towards Trustworthy Federated Learning with Untrusted Participants", ICML 2025
    (covariance bound-agnostic filter).

    >>> import torch
    >>> from wardround import Updates, aggregators
    >>> sent = Updates(torch.tensor([[1.0], [1.2], [1.1], [1.3], [-90.0]]))
    >>> out = aggregators.create("caf", f=1).aggregate(sent)
    >>> round(out.delta.item(), 2), out.weights[4].item()
    (1.15, 0.0)
    """

    clients_per_byzantine, clients_besides = 2, 1

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(gram=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        n, f = len(updates), self.byzantine(context.clients)
        gram = context.measurements.geometry.gram
        counts, best, least = (
            torch.ones(n, dtype=torch.float64),
            torch.ones(n, dtype=torch.float64),
            torch.inf,
        )
        scores = torch.zeros(n, dtype=torch.float64)
        with _one_thread() if n >= MANY else nullcontext():
            while counts.sum() > max(n - 2 * f, 1e-9):
                top, along = _top_direction(gram, counts / counts.sum())
                if least == torch.inf:
                    scores = along
                if top < least:
                    least, best = top, counts
                greatest = along[counts > 0].max()
                if not greatest > 0:
                    break
                counts = counts * (1 - along / greatest).clamp(min=0)
        weights = best / best.sum()
        return Aggregation(context.measurements.weighted_sum(weights), weights=weights, scores=scores)


def _one_thread() -> AbstractContextManager[Any]:
    """Keep scipy's linear algebra on this thread: its threads wait for each other by spinning.

    On a busy machine the eigenvector of 128 rows then takes forty times as long. Entering costs a millisecond.
    """
    import scipy.linalg  # noqa: F401  (only libraries that are loaded can be told)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits


def _top_direction(gram: Tensor, shares: Tensor) -> tuple[float, Tensor]:
    """Find the direction in which weighted rows vary most.

    With X the rows about their weighted mean and S the square roots of the shares, the covariance XᵀS²X and the small
    matrix S X Xᵀ S have the same eigenvalues; an eigenvector u of the latter gives ⟨v, X_i⟩² = (X XᵀS u)_i² / λ.

    Args:
        gram: N × N inner products of the rows, about any centre.
        shares: N weights that sum to 1.

    Returns:
        The top eigenvalue, and N squared projections ⟨v, U_i − μ⟩² on its direction.
    """
    from scipy.linalg import eigh

    image = gram @ shares
    centred = gram - image[:, None] - image[None, :] + shares @ image
    root = shares.sqrt()
    n = len(shares)
    weighted = (root[:, None] * centred * root[None, :]).numpy()
    values, vectors = eigh(weighted, subset_by_index=[n - 1, n - 1])  # the top pair only
    top = float(values[0])
    if not top > 1e-14 * float(centred.diagonal().max().clamp(min=1e-300)):
        return max(top, 0.0), torch.zeros_like(shares)
    return top, (centred @ (root * torch.from_numpy(vectors[:, 0]))).square() / top
