"""Optimal ALIE and IPM: the strength that moves the defender's own rule farthest."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, Parameters, register
from wardround.attacks.matrix_operations import mean_of, moments, norms_of
from wardround.attacks.search_space import FIXED, Range


class LineSearch(Attack):
    """Base of attacks with one number to choose, chosen on a copy of the defender's rule."""

    knowledge_levels = (KnowledgeLevel.OMNISCIENT,)
    knows_defence = True

    class Params(Parameters):
        evaluations: Annotated[int, FIXED] = Field(20, ge=1)
        """Rows tried on the rule."""
        first: Annotated[float, FIXED] = 0.0
        """The first strength."""
        step: Annotated[float, Range(0.1, 100, log=True)] = 10.0
        """The first step; doubled while it helps, then multiplied by `ratio`."""
        ratio: Annotated[float, FIXED] = Field(0.8, gt=0.5, lt=1)
        """Contraction of the step."""
        fallback: Annotated[float, FIXED] = 1.5
        """The strength where there is no rule to try (`Knowledge.defence` is None)."""

    params: Params

    @abstractmethod
    def line(self, honest: Tensor) -> tuple[Tensor, Tensor]:
        """The line that rows lie on, from N × D honest rows: a point and a direction, D values each."""

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        others = knowledge.others(own)
        honest = others if len(others) else knowledge.known(own)
        point, direction = self.line(honest)
        strength = self.params.fallback
        if knowledge.defence is not None:
            strength = self._search(point, direction, mean_of(honest), len(own), knowledge)
        return point.add(direction, alpha=strength).repeat(len(own), 1)

    def _search(
        self, point: Tensor, direction: Tensor, mean: Tensor, count: int, knowledge: Knowledge
    ) -> float:
        """Expand the step while the rule's result moves farther from the honest mean, then contract it."""
        p, defence = self.params, knowledge.defence
        assert defence is not None

        def harm(strength: float) -> float:
            delta = defence(point.add(direction, alpha=strength).repeat(count, 1)).delta
            return float(norms_of((delta.to(mean.dtype) - mean)[None]))

        best, step, left, expanding = p.first, p.step, p.evaluations - 1, True
        most = harm(best)
        while left > 0:
            tried = best + step
            reached = harm(tried)
            left -= 1
            if reached > most:
                best, most = tried, reached
                step = step * 2 if expanding else step * p.ratio
            else:
                expanding, step = False, step * p.ratio
        return best


@register("optimal-alie")
class OptimalAlie(LineSearch):
    r"""`alie` with the shift that moves the defender's rule farthest from the honest mean.

    .. math:: \tilde g = \mu + z^*\sigma, \qquad
        z^* \approx \arg\max_z \big\| \mathrm{AGR}(U_{\setminus B} \cup \{\mu + z\sigma\}) - \mu \big\|

    μ and the unbiased σ are those of the clients that do not attack. The line search is ByzFL's: from `first`, the step
    doubles while it helps; after the first failure it shrinks by `ratio` with every trial.

    Allouah et al., "Fixing by Mixing", AISTATS 2023 (optimised attacks); Shejwalkar, Houmansadr, NDSS 2021.

    >>> import torch
    >>> from wardround import Aggregation, attacks
    >>> honest = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> def mean_without_far_rows(rows):
    ...     sent = torch.cat([rows, honest[1:]])
    ...     return Aggregation(sent[sent.abs() < 6].mean().reshape(1))
    >>> knowledge = attacks.Knowledge(round=1, honest=honest, own_rows=(0,), defence=mean_without_far_rows)
    >>> bool(attacks.create("optimal-alie", step=1.0).craft(honest[:1], knowledge) > 5)
    True
    """

    def line(self, honest: Tensor) -> tuple[Tensor, Tensor]:
        return moments(honest)


@register("optimal-ipm")
class OptimalIpm(LineSearch):
    r"""`ipm` with the strength that moves the defender's rule farthest from the honest mean.

    .. math:: \tilde g = -\varepsilon^* \mu, \qquad
        \varepsilon^* \approx \arg\max_\varepsilon
        \big\| \mathrm{AGR}(U_{\setminus B} \cup \{-\varepsilon\mu\}) - \mu \big\|

    μ is the mean of the clients that do not attack; the line search is that of `optimal-alie`.

    Allouah et al., "Fixing by Mixing", AISTATS 2023 (optimised attacks); C. Xie et al., UAI 2019.

    >>> import torch
    >>> from wardround import Aggregation, attacks
    >>> honest = torch.ones(4, 2)
    >>> knowledge = attacks.Knowledge(
    ...     round=1, honest=honest, own_rows=(0,), defence=lambda rows: Aggregation(rows[0] / 4 + 0.75)
    ... )
    >>> attacks.create("optimal-ipm", evaluations=3).craft(honest[:1], knowledge)
    tensor([[-30., -30.]])
    """

    def line(self, honest: Tensor) -> tuple[Tensor, Tensor]:
        mean = mean_of(honest)
        return mean.new_zeros(len(mean)), -mean
