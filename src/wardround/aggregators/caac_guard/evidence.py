r"""What the parts of updates say about their senders, whatever the case mix of the senders is.

Which outcomes a hospital has decides how long the parts of its update are; it hardly decides where they point. So parts
are compared within an outcome and by direction alone. Four statements, all free of scale and case mix, all with the
limit 0:

1. **Certificate.** Patients of an outcome raise the logit of that outcome: the gradient of the loss at the bias of
   their own logit is :math:`p - 1 < 0`, whatever the model. A part that lowers it cannot come from training on such
   patients.
2. **Agreement.** Honest parts of an outcome have a positive cosine to their centre.
3. **Balance.** Where the features that reach the output layer are never negative (after a ReLU), most of what an
   outcome pushes is what all patients have in common, and the other outcome pushes it in the other direction. So a part
   has a negative cosine to the centre of the other outcome. A minority that holds a rare outcome cannot be outvoted
   there by those who only claim it.
4. **Discrimination.** What distinguishes the outcomes of a client is what distinguishes them elsewhere. A client whose
   labels, features or signs are exchanged has them the wrong way round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD
from wardround.aggregators.caac_guard.geometry import TINY, PartAngles

__all__ = [
    "compare_directions", "compare_discrimination", "compare_residuals", "excess_lengths", "find_impossible",
    "has_positive_features",
]  # fmt: skip

ROUNDING = 1e-6


def find_impossible(bias: Tensor, lengths: Tensor, holders: Tensor, reach: Tensor | None) -> Tensor:
    """Which clients (N booleans) sent a part that lowers the logit of its own outcome, or raises it out of reach.

    A part may leave it as it is: a model that is sure of all patients of an outcome learns nothing from them.

    Args:
        bias: N × C: steps of the bias of each part's own logit.
        lengths: N × C: norms of the parts; what is lost in their rounding is no step.
        holders: N × C booleans: whose parts are looked at.
        reach: N × C: how far training on the patients of an outcome can move that bias; None where nobody knows.
    """
    impossible = bias < -ROUNDING * lengths
    if reach is not None:
        impossible |= bias > reach
    return (holders & impossible).any(1)


def excess_lengths(bias: Tensor, lengths: Tensor, fit: Tensor) -> Tensor:
    """How many times longer than usual all of a client's parts are for their steps of the bias; 1 unless far (N).

    A part is its step of the bias times the mean gradient of the logit over its patients, whose length hardly depends
    on which or how many patients they are. So case mix does not make a part too long. Far is more than twenty times the
    median and more than three standard deviations (by the median absolute deviation) above it on a log scale.

    Args:
        bias: N × C: steps of the bias of each part's own logit.
        lengths: N × C: norms of the parts.
        fit: N × C booleans: whose parts are looked at.
    """
    excess = torch.full_like(bias, torch.inf)
    shown = fit & (bias > ROUNDING * lengths)
    for outcome in range(bias.shape[1]):
        own = shown[:, outcome]
        if bool(own.any()):
            above = (lengths[own, outcome] / bias[own, outcome]).log()
            above = above - above.quantile(0.5)
            limit = (3 * above.abs().quantile(0.5) / GAUSSIAN_MAD).clamp_min(math.log(20))
            excess[own, outcome] = torch.where(above > limit, above.exp(), 1.0)
    least = excess.amin(1)
    return torch.where(least.isinf(), 1.0, least)


def has_positive_features(own_weights: Tensor, weights: Tensor) -> bool:
    """Are the features that reach the output layer never negative?

    Then every patient raises all weights of its own logit. Most clients decide, on the outcome that most of them hold.

    Args:
        own_weights: N × C × inputs: steps of the weights of each part's own logit.
        weights: N × C: how much each part counts.
    """
    outcome = int((weights > 0).sum(0).argmax())
    counted = weights[:, outcome]
    steps = own_weights[:, outcome]
    rising = (steps >= -ROUNDING * steps.abs().amax(1, keepdim=True)).all(1)
    return bool(counted[rising].sum() > counted.sum() / 2)


def compare_directions(angles: PartAngles, weights: Tensor, holders: Tensor, balanced: bool) -> Tensor:
    """Agreement of all parts with the centres of their outcomes and, where outcomes push against each other, balance.

    Args:
        angles: Of N clients' parts of C outcomes.
        weights: N × C: how much each client's part counts for the centre of its outcome; 0 for nobody to go by.
        holders: N × C booleans: whose parts are looked at.
        balanced: There are two outcomes, and they push against each other.

    Returns:
        N × C cosines, the lesser of both; NaN where there is nothing to compare.
    """
    outcomes = weights.shape[1]
    scale = 1 / angles.lengths.clamp_min(TINY)
    vectors = [angles.each(outcome, scale[:, outcome]) for outcome in range(outcomes)]
    balance = torch.full(angles.shape, torch.nan, dtype=torch.float64)
    centres = _centres(angles, scale, weights)
    if balanced:
        # The outcome that most clients hold comes first: it says who stands on the wrong side of the other outcome.
        most_held = int((weights > 0).sum(0).argmax())
        for outcome, other in ((1 - most_held, most_held), (most_held, 1 - most_held)):
            centre = centres[other]
            if centre is not None:
                balance[:, outcome] = -angles.cosines(vectors[outcome], centre)
                weights = torch.where(balance <= 0, 0.0, weights)
                centres = _centres(angles, scale, weights)
    cosines = torch.full_like(balance, torch.nan)
    for outcome, centre in enumerate(centres):
        if centre is not None:
            cosines[:, outcome] = angles.cosines(vectors[outcome], centre)
    return torch.where(holders, torch.fmin(cosines, balance), torch.nan)


def compare_residuals(angles: PartAngles, weights: Tensor, holders: Tensor) -> Tensor:
    """Compare parts with their outcome's centre in what the other of two outcomes cannot explain.

    A part that also holds a few patients of the other outcome is its own outcome's direction plus some of the other's.
    Without its share along the other centre, it still points where its own outcome's centre does without that.

    Args:
        angles: Of N clients' parts of two outcomes.
        weights: N × 2: how much each part counts for the centres.
        holders: N × 2 booleans: whose parts are looked at.

    Returns:
        N × 2 cosines; NaN where there is nothing to compare.
    """
    scale = 1 / angles.lengths.clamp_min(TINY)
    cosines = torch.full(angles.shape, torch.nan, dtype=torch.float64)
    centres = _centres(angles, scale, weights)
    if centres[0] is None or centres[1] is None:
        return cosines
    for outcome, (own, other) in enumerate(zip(centres, centres[::-1], strict=True)):
        assert own is not None
        assert other is not None
        direction = other / angles.norms(other).clamp_min(TINY)

        def without_other(vectors: Tensor, direction: Tensor = direction) -> Tensor:
            along = angles.dots(vectors, direction.expand_as(vectors))
            return vectors - along[..., None, None] * direction

        parts = without_other(angles.each(outcome, scale[:, outcome]))
        cosines[:, outcome] = angles.cosines(parts, without_other(own))
    return torch.where(holders, cosines, torch.nan)


def _centres(angles: PartAngles, scale: Tensor, weights: Tensor) -> list[Tensor | None]:
    """The centre of the directions of every outcome; None where nobody has weight."""
    return [
        angles.centre(outcome, scale[:, outcome], own) if bool((own > 0).any()) else None
        for outcome, own in enumerate(weights.T)
    ]


def compare_discrimination(angles: PartAngles, bias: Tensor, weights: Tensor, holders: Tensor) -> Tensor:
    """How far what distinguishes a client's two outcomes is what distinguishes them for all, from −1 to 1.

    A part divided by its step of the bias is a mean over the patients of the outcome, of the gradient of the logit. The
    difference of both means is compared with that of the centres.

    Args:
        angles: Of N clients' parts of two outcomes of one logit.
        bias: N × 2: what `OutputLayer.own_logit` gives.
        weights: N × 2: how much each part counts for the centres.
        holders: N × 2 booleans: whose parts are looked at.

    Returns:
        N cosines; NaN for a client that shows nothing.
    """
    fit = holders & (bias > 0)
    counted = torch.where(fit, weights, 0.0)
    result = torch.full((len(holders),), torch.nan, dtype=torch.float64)
    if not bool((counted > 0).any(0).all()):
        return result
    per_bias = torch.where(fit, 1 / bias.clamp_min(TINY), 0.0)
    one, zero = (angles.centre(c, per_bias[:, c], counted[:, c]) for c in (1, 0))
    # Outcome 0 pushes the logit down: the mean over its patients has the other sign, and minus it is a sum.
    vectors = angles.each(1, per_bias[:, 1]) + angles.each(0, per_bias[:, 0])
    both = fit.all(1)
    result[both] = angles.cosines(vectors, one + zero)[both]
    return result
