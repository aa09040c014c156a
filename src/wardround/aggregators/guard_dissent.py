"""Who contradicts the others from the first round on, whatever case mix each client has: reversed rows, flipped labels.

Where hospitals have one class each, an honest row of the one kind points against an honest row of the other, and a
reversed row looks like either. What tells them apart is the step of the output bias, which shows the side a
client pulls to, beside the plane in which the round's rows lie.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wardround.updates import PARAMETER, Updates

__all__ = ["contradicting", "output_bias_steps"]

FEWEST = 6
"""Clients below which a plane says nothing."""
CLEAR_PLANE = 2.0
"""So many times the third eigenvalue the second must be for anyone to be named."""
CLEAR_GAP = math.radians(6)
"""A border between the two kinds of rows lies in an empty sector at least this wide."""


def output_bias_steps(updates: Updates) -> Tensor | None:
    """N: how each client moved the bias of the network's only output; None where there is no such parameter."""
    layout = updates.layout
    if layout is None or len(layout.shapes) < 2 or layout.kinds[-1] != PARAMETER:
        return None
    weight, bias = layout.shapes[-2:]
    if bias != (1,) or len(weight) != 2 or weight[0] != 1:
        return None
    return updates.matrix[:, -1].double().cpu()


def contradicting(cosines: Tensor, pulls: Tensor) -> tuple[Tensor, bool] | None:
    r"""The fewest clients without whom all rows of the round could be honest, and whether that is clear enough to
    name them. None where the round cannot tell.

    In the plane of the two leading eigenvectors of the rows' cosines, honest clients lie in a half-plane: at its one
    end those who see only negative labels, at the other those who see only positive ones, between them the mixed.
    Along it the step :math:`b_i` of the output bias changes sign once. So some line through the origin has

    .. math:: \mathrm{sign}(b_i) \cdot \mathrm{side}_i = \text{the same for all } i,
        \qquad \mathrm{side}_i = \mathrm{sign}(\sin(\theta_i - c)),\ \theta_i = \angle\, \mathrm{sign}(b_i)\, z_i

    A reversed row has both its direction and its bias reversed: :math:`\theta_i` stays, :math:`\mathrm{sign}(b_i)` does
    not, and it stands on the wrong side. Every line in an empty sector is tried, and the one that accuses fewest
    counts: a federation is presumed honest.

    `cosines` is N × N, `pulls` the N steps of the output bias. It is clear where the plane is: where hospitals are so
    small that chance rules their rows, the second eigenvalue hardly differs from the third.

    >>> angles = torch.deg2rad(torch.tensor([2.0, 4.0, 5.0, 7.0, 160.0, 165.0, 167.0, 80.0])).double()
    >>> rows = torch.stack([angles.cos(), angles.sin()], 1)
    >>> pulls = torch.tensor([-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 0.1]).double()
    >>> contradicting(rows @ rows.T, pulls)[0].any().item()
    False
    >>> rows[1], pulls[1] = -rows[1], -pulls[1]
    >>> contradicting(rows @ rows.T, pulls)[0].nonzero().flatten().tolist()
    [1]
    """
    if len(cosines) < FEWEST:
        return None
    values, vectors = torch.linalg.eigh(cosines)
    signs = torch.where(pulls < 0, -1.0, 1.0).double()
    points = vectors[:, -2:] * values[-2:].clamp(min=0).sqrt() * signs[:, None]
    angles = torch.atan2(points[:, 1], points[:, 0])
    lines = (angles % math.pi).sort().values
    sectors = torch.cat([lines[1:], lines[:1] + math.pi]) - lines
    empty = sectors >= CLEAR_GAP
    borders = (lines + sectors / 2)[empty]
    if len(borders) == 0:
        return None
    agree = torch.sin(angles[None, :] - borders[:, None]) * signs > 0
    accused = torch.where(agree.sum(1, keepdim=True) * 2 >= len(signs), ~agree, agree)
    # of equals the widest sector
    order = accused.sum(1) - 0.5 * sectors[empty] / math.pi
    clear = bool(values[-2] >= CLEAR_PLANE * values[-3].clamp(min=0))
    return accused[order.argmin()], clear
