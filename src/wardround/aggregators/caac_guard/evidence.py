r"""What the parts of updates say about their senders, whatever the case mix of the senders is.

Which outcomes a hospital has decides how long the parts of its update are; it hardly decides where they point. So parts
are compared within an outcome and by direction alone. Four statements, all free of scale and case mix, all with the
limit 0:

1. **Certificate.** Patients of an outcome raise the logit of that outcome: the gradient of the loss at the bias of
   their own logit is :math:`p - 1 < 0`, whatever the model. A part that lowers it cannot come from training on such
   patients.
2. **Agreement.** Honest parts of an outcome have a positive cosine to what the others contribute to their centre.
3. **Balance.** Where the features that reach the output layer are never negative (after a ReLU), most of what an
   outcome pushes is what all patients have in common, and the other outcome pushes it in the other direction. So a part
   has a negative cosine to the centre of the other outcome. A minority that holds a rare outcome cannot be outvoted
   there by those who only claim it.
4. **Side.** The part of an outcome lies nearer to the centre of its own outcome than to that of another one. A client
   whose labels, features or signs are exchanged has them the wrong way round, all of them. A client with several
   outcomes is judged by the one that lies best: patients who differ from those elsewhere move one outcome to the wrong
   side, not all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.aggregators._math.order_statistics import GAUSSIAN_MAD
from wardround.aggregators.caac_guard.geometry import TINY, OutputLayer, PartAngles, geometric_median

__all__ = [
    "Nearness", "Sides", "compare_directions", "compare_outcomes", "excess_lengths", "find_impossible",
    "has_positive_features", "nearness", "nearness_of_many", "nearness_of_two", "takes_plain_gradients",
]  # fmt: skip

ROUNDING = 1e-6
PLAIN = 0.05
"""How much of a step may be left when the steps of all logits are added up, for a sum of plain gradients."""
MOVES, SETTLED = 20, 1e-3
"""Of the centres, at most, until no client's trust changes by more than this."""


@dataclass(frozen=True, eq=False)
class Sides:
    """On which side the outcomes of N clients lie in a round."""

    values: Tensor
    """N: that of the client's outcome that lies best: about 1 on its own side, −1 on another's; NaN for a client that
    shows nothing."""
    patients: Tensor
    """N: of that outcome."""
    apart: float
    """Squared distance between the centres of outcomes."""
    is_evidence: bool
    """Does the round show who has exchanged outcomes? Else it says nothing about anybody."""


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
    scale = 1 / angles.lengths.clamp_min(TINY)
    balance = torch.full(angles.shape, torch.nan, dtype=torch.float64)
    centres = _centres(angles, scale, weights)
    if balanced:
        # The outcome that most clients hold comes first: it says who stands on the wrong side of the other outcome.
        most_held = int((weights > 0).sum(0).argmax())
        for outcome, other in ((1 - most_held, most_held), (most_held, 1 - most_held)):
            centre = centres[other]
            if centre is not None:
                balance[:, outcome] = -angles.cosines_to_others(centre)[:, outcome]
                weights = torch.where(balance <= 0, 0.0, weights)
                centres = _centres(angles, scale, weights)
    cosines = torch.full_like(balance, torch.nan)
    for outcome, centre in enumerate(centres):
        if centre is not None:
            cosines[:, outcome] = angles.cosines_to_others(centre)[:, outcome]
    return torch.where(holders, torch.fmin(cosines, balance), torch.nan)


def _centres(angles: PartAngles, scale: Tensor, weights: Tensor) -> list[Tensor | None]:
    """The centre of the directions of every outcome; None where nobody has weight."""
    return [
        angles.centre(outcome, scale[:, outcome], own) if bool((own > 0).any()) else None
        for outcome, own in enumerate(weights.T)
    ]


@dataclass(frozen=True, eq=False)
class Nearness:
    """How much nearer parts lie to the centre of their own outcome than to another's, and how far these are apart."""

    values: Tensor
    """N × C: 1 at the own centre, −1 at another outcome's, 0 half-way; NaN where there is nothing to compare."""
    apart: float
    """Squared distance of a centre to the nearest other one, mean over outcomes; 0 with fewer than two centres."""
    squares: Tensor
    """C: squared norms of the centres."""


def nearness(to_centres: Tensor, between: Tensor) -> Nearness:
    r"""Compare points with the centres of all outcomes.

    .. math:: \min_{k \ne c} \frac{\|u_i^c - g_k\|^2 - \|u_i^c - g_c\|^2}{\|g_k - g_c\|^2}

    Args:
        to_centres: N × C × C: inner products of every point of outcome c with the centre of outcome k; NaN without one.
        between: C × C inner products of the centres.

    >>> centres = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    >>> points = torch.stack([centres, centres.flip(0)])  # the second client has its outcomes exchanged
    >>> nearness(points @ centres.T, centres @ centres.T).values
    tensor([[ 1.,  1.],
            [-1., -1.]])
    """
    squares = between.diagonal()
    own = to_centres.diagonal(dim1=1, dim2=2)
    further = squares[None, None, :] - squares[None, :, None] - 2 * (to_centres - own[:, :, None])
    apart = squares[:, None] + squares[None, :] - 2 * between
    ratio = further / apart.clamp_min(TINY)
    for table in (ratio, apart[None]):
        table.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    least, nearest = (torch.where(table.isnan(), torch.inf, table).amin(2) for table in (ratio, apart[None]))
    known = nearest[~nearest.isinf()]
    values = torch.where(least.isinf() | own.isnan(), torch.nan, least)
    return Nearness(values, float(known.mean()) if len(known) else 0.0, squares)


def nearness_of_two(angles: PartAngles, weights: Tensor) -> Nearness:
    """`nearness` of N clients' parts of two outcomes, by direction.

    Outcomes 0 and 1 push one logit to opposite sides: minus the parts of outcome 0 are compared with those of 1.

    Args:
        angles: Of the parts.
        weights: N × 2: how much each part counts for the centre of its outcome.
    """
    scale = torch.tensor([-1.0, 1.0], dtype=torch.float64) / angles.lengths.clamp_min(TINY)
    centres = _centres(angles, scale, weights)
    to_centres = torch.full((*angles.shape, 2), torch.nan, dtype=torch.float64)
    between = torch.full((2, 2), torch.nan, dtype=torch.float64)
    for outcome, centre in enumerate(centres):
        if centre is not None:
            along = angles.along(centre)
            to_centres[:, :, outcome] = scale * along
            for other, second in enumerate(centres):
                if second is not None:
                    between[outcome, other] = (second * along).sum()
    return nearness(to_centres, between)


def nearness_of_many(own_weights: Tensor, weights: Tensor) -> Nearness:
    """`nearness` of N clients' parts of many outcomes, by what reaches the logit of the own outcome.

    The step of the weights of that logit is a weighted sum of what its patients show to the output layer.

    Args:
        own_weights: N × C × inputs: steps of the weights of each part's own logit.
        weights: N × C: how much each part counts for the centre of its outcome.
    """
    roots = own_weights.sign() * own_weights.abs().sqrt()
    points = roots / roots.norm(dim=2, keepdim=True).clamp_min(TINY)
    centres = torch.full(points.shape[1:], torch.nan, dtype=torch.float64)
    for outcome, own in enumerate(weights.T):
        if bool((own > 0).any()):
            of_outcome = points[:, outcome]
            centres[outcome] = geometric_median(of_outcome @ of_outcome.T, own) @ of_outcome
    return nearness(points @ centres.T, centres @ centres.T)


def takes_plain_gradients(parts: Tensor, layer: OutputLayer, weights: Tensor) -> bool:
    """Are the clients' steps of the output layer sums of gradients, not rescaled by an optimiser such as Adam?

    The gradients of all logits of a patient sum to 0 (cross-entropy of a softmax). Most clients decide, on the outcome
    that most of them hold.

    Args:
        parts: N × C × D.
        layer: The output layer, of C logits.
        weights: N × C: how much each part counts.
    """
    outcome = int((weights > 0).sum(0).argmax())
    counted = weights[:, outcome]
    steps = parts[:, outcome, layer.weight].double().cpu().unflatten(1, (layer.outputs, -1))
    left = steps.sum(1).norm(dim=1) / steps.flatten(1).norm(dim=1).clamp_min(TINY)
    return bool(counted[left < PLAIN].sum() > counted.sum() / 2)


def compare_outcomes(
    measure: Callable[[Tensor], Nearness],
    weights: Tensor,
    holders: Tensor,
    counts: Tensor,
    covered: Tensor,
    remember: Callable[[Tensor], Tensor],
) -> Sides:
    """On which side each client's outcomes lie, on its own or on another's, by centres that only the former decide.

    A client counts for the centres of the next step as much as its outcomes lie on their own side, at most fully. Where
    labels are exchanged in many hospitals, the first centres lie between the true ones, and move there.

    Args:
        measure: (N × C weights of the parts) → their nearness.
        weights: N × C: how much each part counts at first.
        holders: N × C booleans: whose parts are looked at.
        counts: N × C patients.
        covered: N × C booleans: the outcomes that the parts hold patients of, counted or not.
        remember: (N sides of this round) → N means over rounds.
    """
    unknown = torch.full((len(weights),), torch.nan, dtype=torch.float64)
    trust = remember(unknown).nan_to_num(nan=1.0).clamp(0, 1)
    for _ in range(MOVES):
        near = measure(weights * trust[:, None])
        values = torch.where(holders, near.values, torch.nan)
        best, of = values.nan_to_num(nan=-torch.inf).max(1)
        sides = torch.where(best.isinf(), torch.nan, best)
        again = remember(sides).nan_to_num(nan=1.0).clamp(0, 1)
        left = (weights * again[:, None] > 0).any(0) | ~(weights > 0).any(0)
        if torch.allclose(again, trust, rtol=0, atol=SETTLED) or not bool(left.all()):
            break
        trust = again
    patients = torch.where(sides.isnan(), 0.0, counts.gather(1, of[:, None]).flatten())
    is_evidence = near.apart > 3 * _distance_by_chance(near.squares, weights * trust[:, None])
    return Sides(sides, patients, near.apart, is_evidence and _is_evidence(sides, covered))


def _distance_by_chance(squares: Tensor, weights: Tensor) -> float:
    """The squared distance at which the centres of two outcomes are expected that do not differ at all.

    Points have length 1, so their mean squared distance to a centre g is about 1 − |g|², and the centre of n of them
    misses the true one by an n-th of that.

    Args:
        squares: C squared norms of the centres; NaN without one.
        weights: N × C: how much each point counts.
    """
    clients = weights.sum(0).square() / weights.square().sum(0).clamp_min(TINY)
    misses = (1 - squares).clamp_min(0) / clients.clamp_min(1)
    return 2 * float(misses[~misses.isnan()].mean()) if bool((~misses.isnan()).any()) else 0.0


def _is_evidence(sides: Tensor, covered: Tensor) -> bool:
    """Does a round show who has exchanged outcomes?

    Most clients must lie on their own side, the median one of them by three standard deviations (by the median absolute
    deviation). And whoever exchanges outcomes has patients of each under the name of another: clients on the wrong side
    must be seen in two outcomes at least. Those who capture the centre of one outcome leave the others as they are.

    Args:
        sides: N: that of the clients; NaN for a client that shows nothing.
        covered: N × C booleans: the outcomes that a client's parts hold patients of.
    """
    shown = sides[~sides.isnan()]
    own = shown[shown > 0]
    if len(own) <= len(shown) / 2:
        return False
    centre = own.quantile(0.5)
    spread = (own - centre).abs().quantile(0.5) / GAUSSIAN_MAD
    wrong = covered[sides < 0].any(0)
    return bool(centre >= 3 * spread) and int(wrong.sum()) != 1
