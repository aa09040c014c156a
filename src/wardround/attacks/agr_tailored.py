"""AGR-tailored: the attacker owns a copy of the defender's rule and tries rows on it."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Defence, Knowledge, KnowledgeLevel, Parameters, register
from wardround.attacks.matrix_operations import norms_of
from wardround.attacks.min_max_sum import MARGIN, Geometry, MinMax, Perturbation
from wardround.attacks.search_space import FIXED, Range


@register("agr-tailored")
class AgrTailored(Attack):
    r"""The strongest row along a direction that the defender's own rule still lets in.

    .. math::
        \tilde g = \bar U + \gamma\,p, \qquad
        \gamma = \arg\max_\gamma\ \langle \mathrm{AGR}(U_{\setminus B} \cup \tilde g) - \bar U,\ \hat p\rangle

    with p the chosen direction at the median norm of the known updates, so that γ counts honest norms.
    The search halves γ from `limit` down and keeps the strength that displaces the rule's result most;
    then it bisects between that and the next larger one, which did not get through. All attackers
    send the same row. Every candidate is one run of a copy of the rule, with its state.

    Where there is no rule to try (`Knowledge.defence` is None), the best that is known without one is
    sent: the Min-Max row along the same direction. A `Campaign` does not let that happen: it insists on
    the rule.

    V. Shejwalkar, A. Houmansadr, NDSS 2021 (AGR-tailored attacks, full knowledge).

    >>> import torch
    >>> from wardround import Aggregation, attacks
    >>> honest = torch.tensor([[1.0, 0.0]] * 8)
    >>> def clips_at_two(rows):  # a rule that forgets whoever is longer than 2
    ...     sent = torch.cat([rows, honest[1:]])
    ...     return Aggregation(sent[sent.norm(dim=1) <= 2].mean(0))
    >>> knowledge = attacks.Knowledge(round=1, honest=honest, defence=clips_at_two)
    >>> attacks.create("agr-tailored", steps=20).craft(honest[:1], knowledge)[0, 0] < -1.99
    tensor(True)
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT,)
    knows_defence = True

    class Params(Parameters):
        perturbation: Perturbation = "unit"
        """p: minus the unit mean, minus the std or minus the sign of the mean of the known updates."""
        limit: Annotated[float, Range(1, 64, log=True)] = Field(16.0, gt=0)
        """The largest γ tried, in median honest norms: where the rule lets everything in, this is what is sent."""
        halvings: Annotated[int, FIXED] = Field(12, ge=1)
        """How often γ is halved in the search for a first strength that gets through."""
        steps: Annotated[int, FIXED] = Field(8, ge=0)
        """Bisections between that and the next larger one."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        known = knowledge.known(own)
        geometry = Geometry.of(known, self.params.perturbation)
        if geometry.square == 0:
            return geometry.mean.repeat(len(own), 1)
        if knowledge.defence is None:
            gamma = MinMax().largest(geometry) * (1 - MARGIN)
        else:
            unit = float(norms_of(known).quantile(0.5)) / geometry.square**0.5
            gamma = unit * self._strongest(geometry, unit, len(own), knowledge.defence)
        return _row(geometry, gamma).repeat(len(own), 1)

    def _strongest(self, geometry: Geometry, unit: float, count: int, defence: Defence) -> float:
        """γ, in units of the median honest norm, by halving and then bisection."""
        mean, p = geometry.mean.double(), geometry.perturbation.double() / geometry.square**0.5

        def harm(gamma: float) -> float:
            rows = _row(geometry, gamma * unit).repeat(count, 1)
            return float(torch.dot(defence(rows).delta.double() - mean, p))

        tried: list[float] = [self.params.limit / 2**i for i in range(self.params.halvings + 1)]
        harms = [harm(gamma) for gamma in tried]
        best = max(range(len(tried)), key=lambda i: (harms[i], -tried[i]))  # of equals, the less conspicuous
        strength, done = tried[best], harms[best]
        too_far = tried[best - 1] if best > 0 else strength
        for _ in range(self.params.steps if too_far > strength else 0):
            middle = (strength + too_far) / 2
            reached = harm(middle)
            if reached > done:
                strength, done = middle, reached
            else:
                too_far = middle
        return strength


def _row(geometry: Geometry, gamma: float) -> Tensor:
    return geometry.mean.add(geometry.perturbation, alpha=gamma)
