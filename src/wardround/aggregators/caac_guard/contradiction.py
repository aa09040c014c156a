"""Clients that contradict the others from the first round on, whatever their case mix: reversed rows, flipped labels.

Where hospitals have one class each, an honest row of one kind points against an honest row of the other, and a
reversed row looks like either. Two things tell them apart: the plane in which the round's rows lie, where all honest
rows share a half-plane; and, where many are reversed, the step of the output bias, which shows how that half-plane
lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.updates import PARAMETER, Updates

__all__ = ["FEW_ACCUSED", "Contradiction", "find_contradicting", "output_bias_steps"]

MINIMUM_CLIENTS = 6
"""With fewer clients a plane says nothing."""
FEW_ACCUSED = 0.2
"""Share of accused clients up to which the line that accuses fewest is believed as it is."""
CLEAR_PLANE = 2.0
"""The plane is clear where the second eigenvalue is at least so many times the third."""
MINIMUM_SECTOR = math.radians(6)
"""A border between honest and reversed rows lies in an empty sector at least this wide."""
ANGLE_PER_ACCUSED = math.radians(15)
"""Such an angle between a line and the border that the output bias suggests counts as one more accused client."""


@dataclass(frozen=True, eq=False)
class Contradiction:
    """The clients of a round that contradict the others."""

    accused: Tensor
    """N booleans."""
    clear: bool
    """Is the plane of the rows clear enough to name the accused?"""


def output_bias_steps(updates: Updates) -> Tensor | None:
    """Measure how each client moved the bias of the network's only output, relative to the norm of its update.

    Returns:
        N values in float64; None where the layout shows no single output with a bias.
    """
    layout = updates.layout
    if layout is None or len(layout.shapes) < 2 or layout.kinds[-1] != PARAMETER:
        return None
    weight, bias = layout.shapes[-2:]
    if bias != (1,) or len(weight) != 2 or weight[0] != 1:
        return None
    steps: Tensor = updates.matrix[:, -1].double().cpu() / updates.norms.clamp(min=1e-300)
    return steps


def find_contradicting(cosines: Tensor, bias_steps: Tensor) -> Contradiction | None:
    r"""Find the fewest clients without whom all rows of the round could be honest.

    An honest row is :math:`\pi_i G_1 + (1-\pi_i) G_0`: what the positive and what the negative samples ask for, where
    :math:`\pi_i` is the client's case mix. So in the plane of the two leading eigenvectors of the rows' cosines
    honest clients lie in a half-plane: at its one end those who see only negative labels, at the other those who see
    only positive ones. Reversed rows lie in the other half. Every line through the origin that lies in an empty
    sector is tried, and the one with fewest clients on its smaller side counts: a federation is presumed honest.

    Where that line accuses more than `FEW_ACCUSED`, lines that accuse others are about as good. Then the output bias
    decides. Its step :math:`b_i` is positive at the one end and negative at the other, so that the border runs about
    along the direction :math:`\beta` in which it grows fastest, found by least squares from
    :math:`b_i \approx \beta^\top z_i`. For that it does not matter who is reversed: row and step are so together.
    Each `ANGLE_PER_ACCUSED` between a line's sector and :math:`\beta` then counts as one more accused client.

    Args:
        cosines: N × N cosines between the clients' updates, float64.
        bias_steps: N values, each client's change of the output bias relative to its norm (`output_bias_steps`).

    Returns:
        The accused clients, and whether the plane is clear: where hospitals are so small that chance rules their
        rows, the second eigenvalue hardly differs from the third. None with fewer than six clients, and where no
        sector is empty.

    >>> angles = torch.deg2rad(torch.tensor([2.0, 4.0, 5.0, 7.0, 160.0, 165.0, 167.0, 80.0])).double()
    >>> rows = torch.stack([angles.cos(), angles.sin()], 1)
    >>> find_contradicting(rows @ rows.T, -rows[:, 0]).accused.any().item()
    False
    >>> rows[[1, 5, 7]] *= -1
    >>> find_contradicting(rows @ rows.T, -rows[:, 0]).accused.nonzero().flatten().tolist()
    [1, 5, 7]
    """
    if len(cosines) < MINIMUM_CLIENTS:
        return None
    values, vectors = torch.linalg.eigh(cosines)
    points = vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()
    angles = torch.atan2(points[:, 1], points[:, 0])
    lines = (angles % math.pi).sort().values
    sectors = torch.cat([lines[1:], lines[:1] + math.pi]) - lines
    empty = sectors >= MINIMUM_SECTOR
    borders, sectors = (lines + sectors / 2)[empty], sectors[empty]
    if len(borders) == 0:
        return None
    sides = torch.sin(angles[None, :] - borders[:, None]) > 0
    accused = torch.where(sides.sum(1, keepdim=True) * 2 >= len(cosines), ~sides, sides)
    cost = accused.sum(1) - 0.5 * sectors / math.pi  # among equals the widest sector wins
    if int(accused[cost.argmin()].sum()) > FEW_ACCUSED * len(cosines):
        along = torch.linalg.lstsq(points, bias_steps[:, None]).solution[:, 0]
        turn = (borders - torch.atan2(along[1], along[0])) % math.pi
        beyond = (torch.minimum(turn, math.pi - turn) - sectors / 2).clamp(min=0)
        cost = cost + beyond / ANGLE_PER_ACCUSED
    clear = bool(values[-2] >= CLEAR_PLANE * values[-3].clamp(min=0))
    return Contradiction(accused[cost.argmin()], clear)
