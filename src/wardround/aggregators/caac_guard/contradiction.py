"""Who contradicts the others from the first round on, whatever case mix each client has: reversed rows, flipped labels.

Where hospitals have one class each, an honest row of the one kind points against an honest row of the other, and a
reversed row looks like either. What tells them apart is the plane in which the round's rows lie, where all honest rows
share a half-plane, and where many are reversed the step of the output bias, which shows how that half-plane lies.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wardround.updates import PARAMETER, Updates

__all__ = ["FEW", "contradicting", "output_bias_steps"]

FEWEST = 6
"""Clients below which a plane says nothing."""
FEW = 0.2
"""A share of clients so small that the line which accuses them is believed as it is."""
CLEAR_PLANE = 2.0
"""So many times the third eigenvalue the second must be for anyone to be named."""
CLEAR_GAP = math.radians(6)
"""A border between the two kinds of rows lies in an empty sector at least this wide."""
ONE_MORE = math.radians(15)
"""So far from where the output bias puts the border is as bad as one more accused."""


def output_bias_steps(updates: Updates) -> Tensor | None:
    """N: how each client moved the bias of the network's only output, per length of its row; None where there is no
    such parameter."""
    layout = updates.layout
    if layout is None or len(layout.shapes) < 2 or layout.kinds[-1] != PARAMETER:
        return None
    weight, bias = layout.shapes[-2:]
    if bias != (1,) or len(weight) != 2 or weight[0] != 1:
        return None
    return updates.matrix[:, -1].double().cpu() / updates.norms.clamp(min=1e-300)


def contradicting(cosines: Tensor, pulls: Tensor) -> tuple[Tensor, bool] | None:
    r"""The fewest clients without whom all rows of the round could be honest, and whether that is clear enough to
    name them. None where the round cannot tell.

    An honest row is :math:`\pi_i G_1 + (1-\pi_i) G_0`: what the positive and what the negative samples ask for,
    :math:`\pi_i` being the client's case mix. So in the plane of the two leading eigenvectors of the rows' cosines
    honest clients lie in a half-plane, at its one end those who see only negative labels, at the other those who see
    only positive ones, and reversed rows lie in the other half. Every line through the origin that lies in an empty
    sector is tried, and the one with fewest clients on its lesser side counts: a federation is presumed honest.

    Where that line accuses more than `FEW`, lines that accuse others are about as good. Then the output bias decides.
    Its step :math:`b_i` is positive at the one end and negative at the other, so that the border runs about along the
    direction :math:`\beta` in which it grows fastest, found by least squares from :math:`b_i \approx \beta^\top z_i`.
    For that it does not matter who is reversed: row and step are so together. Each `ONE_MORE` of angle between a
    line's sector and :math:`\beta` then counts as one more accused.

    `cosines` is N × N, `pulls` the N steps of the output bias per length of row. It is clear where the plane is: where
    hospitals are so small that chance rules their rows, the second eigenvalue hardly differs from the third.

    >>> angles = torch.deg2rad(torch.tensor([2.0, 4.0, 5.0, 7.0, 160.0, 165.0, 167.0, 80.0])).double()
    >>> rows = torch.stack([angles.cos(), angles.sin()], 1)
    >>> contradicting(rows @ rows.T, -rows[:, 0])[0].any().item()
    False
    >>> rows[[1, 5, 7]] *= -1
    >>> contradicting(rows @ rows.T, -rows[:, 0])[0].nonzero().flatten().tolist()
    [1, 5, 7]
    """
    if len(cosines) < FEWEST:
        return None
    values, vectors = torch.linalg.eigh(cosines)
    points = vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()
    angles = torch.atan2(points[:, 1], points[:, 0])
    lines = (angles % math.pi).sort().values
    sectors = torch.cat([lines[1:], lines[:1] + math.pi]) - lines
    empty = sectors >= CLEAR_GAP
    borders, sectors = (lines + sectors / 2)[empty], sectors[empty]
    if len(borders) == 0:
        return None
    sides = torch.sin(angles[None, :] - borders[:, None]) > 0
    accused = torch.where(sides.sum(1, keepdim=True) * 2 >= len(cosines), ~sides, sides)
    cost = accused.sum(1) - 0.5 * sectors / math.pi  # of equals the widest sector
    if int(accused[cost.argmin()].sum()) > FEW * len(cosines):
        along = torch.linalg.lstsq(points, pulls[:, None]).solution[:, 0]
        turn = (borders - torch.atan2(along[1], along[0])) % math.pi
        cost = cost + (torch.minimum(turn, math.pi - turn) - sectors / 2).clamp(min=0) / ONE_MORE
    clear = bool(values[-2] >= CLEAR_PLANE * values[-3].clamp(min=0))
    return accused[cost.argmin()], clear
