"""Min-Max and Min-Sum: as far from the mean as the honest updates are from each other."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import column_chunks, distances_from_gram

MARGIN = 1e-6  # γ is taken so much smaller (relative) that rounding the row to float32 cannot break the bound

Perturbation = Literal["std", "unit", "sign"]


@dataclass(frozen=True)
class Geometry:
    """All that the two bounds need to know of the known updates, in N dimensions and float64."""

    mean: Tensor
    perturbation: Tensor
    """p, of length D."""
    from_mean: Tensor
    """N values ‖U_i − mean‖²."""
    along: Tensor
    """N values ⟨p, U_i − mean⟩."""
    square: float
    """‖p‖²."""
    distances: Tensor
    """N × N values ‖U_i − U_j‖²."""

    @classmethod
    def of(cls, known: Tensor, kind: Perturbation) -> Geometry:
        """Measure N × D known updates in one pass, chunk by chunk: mean, p, and the Gram matrix of the centred rows."""
        n, d = known.shape
        mean, p = torch.empty(d, dtype=known.dtype), torch.empty(d, dtype=known.dtype)
        gram = torch.zeros(n, n, dtype=torch.float64)
        along, square = torch.zeros(n, dtype=torch.float64), 0.0
        shares, ones = torch.full((n,), 1 / n, dtype=known.dtype), torch.ones(n, dtype=known.dtype)
        for part in column_chunks(d):
            rows = known[:, part]
            torch.mv(rows.T, shares, out=mean[part])
            centred = rows - mean[part]
            gram += centred @ centred.T
            if kind == "std":
                squares = torch.mv(centred.square().T, ones)
                p[part] = squares.div_(max(n - 1, 1)).sqrt_().neg_()
            else:
                p[part] = -mean[part] if kind == "unit" else -torch.sign(mean[part])
            along += centred @ p[part]
            square += float(torch.dot(p[part], p[part]))
        if kind == "unit" and square > 0:
            p /= square**0.5
            along, square = along / square**0.5, 1.0
        distances = distances_from_gram(gram)
        return cls(mean, p, gram.diagonal().clone(), along, square, distances)


class WithinDistance(Attack):
    """Base of both attacks: mean + γ·p with the largest γ that their bound allows."""

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        perturbation: Perturbation = "std"
        """p: minus the std of the known updates, minus their unit mean, or minus the sign of their mean."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest updates are known: everyone's, or the attackers' own."""

    params: Params

    @abstractmethod
    def largest(self, geometry: Geometry) -> float:
        """The largest γ within the attack's bound."""

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        geometry = Geometry.of(knowledge.known(own), self.params.perturbation)
        gamma = 0.0 if geometry.square == 0 else self.largest(geometry) * (1 - MARGIN)
        return geometry.mean.add(geometry.perturbation, alpha=gamma).repeat(len(own), 1)


@register("min-max")
class MinMax(WithinDistance):
    r"""Stay no farther from any known update than the two farthest of them are from each other.

    .. math::
        \tilde g = \bar U + \gamma p, \qquad
        \gamma = \max\{\gamma : \max_i\|\tilde g - U_i\|^2 \le \max_{i,j}\|U_i - U_j\|^2\}

    For each i the bound is a quadratic in γ with coefficients from the Gram matrix of the centred
    updates, so the search that the paper does by bisection ends in the exact root:

    .. math:: \gamma = \min_i \frac{b_i + \sqrt{b_i^2 + \|p\|^2(L - \|U_i-\bar U\|^2)}}{\|p\|^2},
        \qquad b_i = \langle p, U_i - \bar U\rangle

    with L the right-hand side above. All attackers send the same row.

    V. Shejwalkar, A. Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and
    Defenses for Federated Learning, NDSS 2021 (AGR-agnostic attacks).

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.tensor([[0.0], [2.0], [4.0]])
    >>> row = attacks.create("min-max").craft(honest[:1], attacks.Knowledge(round=1, honest=honest))
    >>> round(row.item(), 3)  # 4 is the largest distance, and 4 away from the farthest update is 0
    0.0
    """

    def largest(self, geometry: Geometry) -> float:
        room = (geometry.distances.max() - geometry.from_mean).clamp(min=0)
        b = geometry.along
        return float(((b + (b.square() + geometry.square * room).sqrt()) / geometry.square).min())


@register("min-sum")
class MinSum(WithinDistance):
    r"""Keep the sum of squared distances to the known updates within the largest any of them has.

    .. math::
        \tilde g = \bar U + \gamma p, \qquad
        \gamma = \max\{\gamma : \sum_i\|\tilde g - U_i\|^2 \le \max_i\sum_j\|U_i - U_j\|^2\}

    The deviations from the mean sum to zero, so the bound is :math:`N\gamma^2\|p\|^2 + \sum_i\|U_i-\bar
    U\|^2 \le S`, and its root is exact. All attackers send the same row.

    V. Shejwalkar, A. Houmansadr, NDSS 2021.

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.tensor([[0.0], [2.0], [4.0]])
    >>> row = attacks.create("min-sum").craft(honest[:1], attacks.Knowledge(round=1, honest=honest))
    >>> round(row.item(), 3)  # 2 − 2 keeps to 4 + 16 = 20, what the outermost update has
    0.0
    """

    def largest(self, geometry: Geometry) -> float:
        n = len(geometry.from_mean)
        room = (geometry.distances.sum(1).max() - geometry.from_mean.sum()).clamp(min=0)
        return float((room / (n * geometry.square)).sqrt())
