"""Fang's directed-deviation attack on the trimmed mean (and the median)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import column_chunks, craft_rows, moments
from wardround.attacks.search_space import Range


@register("fang-trimmed-mean")
class FangTrimmedMean(Attack):
    r"""Sit just beyond the benign values on the side away from where each parameter is going.

    With :math:`s_j` the sign of the j-th coordinate of the mean without an attack, each crafted value is
    drawn uniformly and independently:

    .. math::
        s_j > 0:&\quad [\min_j/b,\ \min_j]\ \text{if}\ \min_j > 0,\ \text{else}\ [b\min_j,\ \min_j] \\
        s_j \le 0:&\quad [\max_j,\ b\max_j]\ \text{if}\ \max_j > 0,\ \text{else}\ [\max_j,\ \max_j/b]

    over the benign updates. With `knowledge: colluders` their range is not known: the value lies 3 to 4
    standard deviations from the mean of the attackers' own honest updates instead (the paper's
    partial-knowledge form).

    The paper writes its ranges for local models; its authors' later code, like the field's, uses updates
    (default here). `of: parameters` takes the ranges of w + U and sends the difference to w.

    M. Fang, X. Cao, J. Jia, N. Gong, USENIX Security 2020, section 4.4 (b = 2).

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.tensor([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0]])
    >>> row = attacks.create("fang-trimmed-mean").craft(honest[:1], attacks.Knowledge(1, honest=honest))[0]
    >>> bool(1 <= row[0] <= 2), bool(-2 <= row[1] <= -1)
    (True, True)
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        b: Annotated[float, Range(1.1, 10, log=True)] = Field(2.0, gt=1)
        """How far beyond the benign range a crafted value may lie."""
        of: Literal["update", "parameters"] = "update"
        """What the ranges are taken of."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest updates are known: everyone's, or the attackers' own."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        known, benign = knowledge.known(own), knowledge.other_rows(own)
        if benign and self.knowledge is KnowledgeLevel.OMNISCIENT:
            weights = self.require_global_weights(knowledge, own) if self.params.of == "parameters" else None
            near, far = self._beyond_range(known, benign, weights)
        else:
            near, far = _beyond_deviations(known)
        span = far.sub_(near)

        def row(i: int, honest: Tensor) -> Tensor:
            drawn = torch.rand(honest.shape, dtype=honest.dtype, generator=knowledge.generator(i))
            return drawn.mul_(span).add_(near)

        return craft_rows(own, row)

    def _beyond_range(
        self, known: Tensor, benign: list[int], weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The two ends of each coordinate's interval, the one at the benign range first."""
        b = self.params.b
        near, far = torch.empty_like(known[0]), torch.empty_like(known[0])
        index = torch.tensor(benign)
        for part in column_chunks(known.shape[1]):
            rows = known[:, part]
            rising = rows.mean(0) > 0
            others = rows[index]
            edge = torch.where(rising, others.amin(0), others.amax(0))
            shift = 0.0 if weights is None else weights[part]
            value = edge + shift
            # Away from zero the value is multiplied by b, towards zero divided: either way beyond the range.
            outward = rising != (value > 0)
            near[part] = edge
            far[part] = torch.where(outward, value * b, value / b) - shift
        return near, far


def _beyond_deviations(known: Tensor) -> tuple[Tensor, Tensor]:
    """3 and 4 standard deviations from the mean, against the mean's sign."""
    mean, std = moments(known)
    against = torch.where(mean > 0, -std, std)
    return mean + 3 * against, mean + 4 * against
