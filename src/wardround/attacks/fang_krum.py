"""Fang's directed-deviation attack on Krum."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import column_chunks, craft_rows, squared_distances
from wardround.attacks.search_space import FIXED, Range
from wardround.updates import row_squared_norms


@register("fang-krum")
class FangKrum(Attack):
    r"""The largest step against the global direction that Krum still selects.

    With s the signs of the update that would be applied without an attack (Krum's choice), the first
    attacker sends :math:`-\lambda s` and the others rows within ε of it. λ starts at the paper's bound

    .. math::
        \sqrt{\frac{1}{(m-2c-1)\,D}\min_l\sum_{l'\in\Gamma_l^{m-c-2}}\|U_l-U_{l'}\|^2}
        + \frac{1}{\sqrt D}\max_l\|U_l\|

    (l over the m−c benign updates, Γ the nearest of them) and is halved until Krum takes a crafted row or
    λ falls below the threshold. With `knowledge: colluders` the attackers' own honest updates stand in
    for the benign ones, s is the sign of their mean, and crafted rows are added to the simulated round
    one by one until some λ is found: the paper's partial-knowledge form.

    M. Fang, X. Cao, J. Jia, N. Gong: Local Model Poisoning Attacks to Byzantine-Robust Federated Learning,
    USENIX Security 2020, section 4.3.

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.ones(7, 4) + 0.5 * torch.eye(7, 4)
    >>> rows = attacks.create("fang-krum", epsilon=0).craft(honest[:2], attacks.Knowledge(1, honest=honest))
    >>> bool((rows < 0).all()), rows[0].unique().numel()
    (True, 1)
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        epsilon: Annotated[float, Range(0.0001, 1, log=True)] = Field(0.01, ge=0)
        """How far the other crafted rows lie from the first, at most."""
        threshold: Annotated[float, FIXED] = Field(1e-5, gt=0)
        """λ is not halved below this."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest updates are known: everyone's, or the attackers' own."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        known, count = knowledge.known(own), len(own)
        benign = knowledge.other_rows(own)
        distances = squared_distances(known)
        if benign and self.knowledge is KnowledgeLevel.OMNISCIENT:
            signs = known[int(krum_scores(distances, count).argmin())].sign()
            view = _Benign.of(known, benign, distances, signs)
            step, _ = self._search(view, crafted=count)
        else:
            signs = known.mean(0).sign()
            view = _Benign.of(known, list(range(len(known))), distances, signs)
            for crafted in range(1, count + 1):
                step, chosen = self._search(view, crafted)
                if chosen:
                    break

        def row(i: int, honest: Tensor) -> Tensor:
            first = signs.to(honest.dtype) * -step
            if i == 0 or self.params.epsilon == 0:
                return first
            generator = knowledge.generator(i)
            offset = torch.randn(honest.shape, dtype=honest.dtype, generator=generator)
            radius = self.params.epsilon * torch.rand(1, generator=generator).item()
            return first.add_(offset, alpha=radius / max(float(torch.linalg.vector_norm(offset)), 1e-30))

        return craft_rows(own, row)

    def _search(self, view: _Benign, crafted: int) -> tuple[float, bool]:
        """Halve λ from the paper's bound until Krum takes a crafted row; says whether it ever did."""
        step = view.bound(crafted)
        while not view.krum_takes_crafted(step, crafted, self.params.epsilon):
            if step / 2 < self.params.threshold:
                return step, False
            step /= 2
        return step, True


class _Benign:
    """The benign updates as Krum sees them together with rows −λs, in N dimensions."""

    def __init__(self, distances: Tensor, squares: Tensor, along: Tensor, ones: int, dimension: int) -> None:
        self.distances = distances
        self.squares = squares
        self.along = along
        """⟨s, U_l⟩."""
        self.ones = ones
        """‖s‖²."""
        self.dimension = dimension

    @classmethod
    def of(cls, known: Tensor, rows: list[int], distances: Tensor, signs: Tensor) -> _Benign:
        index = torch.tensor(rows)
        along = torch.zeros(len(known), dtype=torch.float64)
        for part in column_chunks(known.shape[1]):
            along += known[:, part] @ signs[part]
        squares = row_squared_norms(known)
        return cls(
            distances[index][:, index],
            squares[index],
            along[index],
            int(signs.count_nonzero()),
            known.shape[1],
        )

    def bound(self, crafted: int) -> float:
        """The paper's upper bound of λ."""
        benign = len(self.squares)
        neighbours = max(1, benign - 2)  # m−c−2 of the m−c benign updates
        nearest = _nearest_sums(self.distances, neighbours).min() if benign > 1 else torch.tensor(0.0)
        divisor = max(1, benign - crafted - 1) * self.dimension
        return float((nearest / divisor).sqrt() + self.squares.max().sqrt() / math.sqrt(self.dimension))

    def krum_takes_crafted(self, step: float, crafted: int, epsilon: float) -> bool:
        """Would Krum, on the benign updates and the crafted ones, select one of the latter?"""
        total = crafted + len(self.squares)
        distances = torch.zeros(total, total, dtype=torch.float64)
        distances[crafted:, crafted:] = self.distances
        # ‖−λs − U_l‖²; crafted rows lie within ε of the first, so within 2ε of each other.
        to_benign = (self.squares + 2 * step * self.along + step**2 * self.ones).clamp(min=0)
        distances[:crafted, crafted:] = to_benign
        distances[crafted:, :crafted] = to_benign[:, None]
        distances[:crafted, :crafted] = (2 * epsilon) ** 2
        distances[0, :crafted] = distances[:crafted, 0] = epsilon**2
        distances.fill_diagonal_(0)
        return int(krum_scores(distances, crafted).argmin()) < crafted


def krum_scores(squared_distances: Tensor, f: int) -> Tensor:
    """Each row's sum of squared distances to its N−f−2 nearest others (at least one)."""
    n = len(squared_distances)
    return _nearest_sums(squared_distances, max(1, n - f - 2)) if n > 1 else torch.zeros(n)


def _nearest_sums(squared_distances: Tensor, neighbours: int) -> Tensor:
    """Σ over the nearest others: a row's smallest entry is its own zero."""
    return squared_distances.sort(1).values[:, 1 : neighbours + 1].sum(1)
