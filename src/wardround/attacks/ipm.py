"""Inner product manipulation: send the opposite of where the honest clients are going."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.matrix_operations import mean_of, norms_of
from wardround.attacks.search_space import Range


@register("ipm")
class InnerProductManipulation(Attack):
    r"""Make the inner product of the aggregate and the true mean negative.

    .. math:: \tilde g = -\varepsilon\,\frac{1}{|K|}\sum_{i\in K} U_i

    over the known updates K. `match_norm: true` gives each row the norm of the client's own honest update
    instead of ε times that of the mean: the protocol's form that "maintains norm but steers direction".

    C. Xie, O. Koyejo, I. Gupta: Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation, UAI 2019; CAAC-FL protocol, section 2.4.

    >>> import torch
    >>> from wardround import attacks
    >>> honest = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> attacks.create("ipm").craft(honest[:1], attacks.Knowledge(round=1, honest=honest))
    tensor([[-1., -0.]])
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        eps: Annotated[float, Range(0.05, 50, log=True)] = Field(0.5, gt=0)
        """Strength, as a multiple of the mean."""
        match_norm: bool = False
        """Give each row the norm of the client's own honest update."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest updates are known: everyone's, or the attackers' own."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        mean = mean_of(knowledge.known(own))
        if not self.params.match_norm:
            return mean.mul_(-self.params.eps).repeat(len(own), 1)
        length = norms_of(mean[None])
        if length == 0:
            return torch.zeros_like(own)  # no direction to oppose
        return (-norms_of(own) / length).to(own.dtype)[:, None] * mean
