"""The attacker who knows rules that compare hospitals within outcomes: honest on all outcomes but the rarest."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.search_space import Range


@register("rare-outcome")
class RareOutcome(Attack):
    r"""Reverse what distinguishes the rarest outcome, and behave on all others.

    .. math:: \tilde g^c = -\mathrm{eps}\cdot\bar U^c \text{ for the rarest outcome } c, \qquad
        \tilde g^{c'} = g^{c'} \text{ for every other}

    where updates are split by outcome; whole updates are :math:`-\mathrm{eps}\cdot\bar U`. Few hospitals hold a rare
    outcome, so attackers are a larger share of those who claim it than of all. With `keep_bias` the step of the output
    layer's bias stays that of the honest mean: a part that lowers the logit of its own outcome gives itself away.

    >>> import torch
    >>> from wardround import attacks
    >>> rarest = attacks.OutcomePart(index=1, outcomes=2, is_rarest=True)
    >>> knowledge = attacks.Knowledge(1, honest=torch.tensor([[1.0, 2.0, 3.0]]), outcome=rarest)
    >>> attacks.create("rare-outcome").craft(torch.ones(1, 3), knowledge)
    tensor([[-1.,  2.,  3.]])
    """

    knowledge_levels = (KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(DisguiseParams):
        eps: Annotated[float, Range(0.1, 10, log=True)] = Field(1.0, gt=0)
        """Length of the reversed mean, as a multiple of it."""
        keep_bias: bool = True
        """Leave the biases of the output layer, the last values of a row, as they are in the honest mean."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        part = knowledge.outcome
        if part is not None and not part.is_rarest:
            return own.clone()
        mean = knowledge.known(own).mean(0)
        crafted = -self.params.eps * mean
        if self.params.keep_bias:
            biases = 1 if part is None else part.outcomes
            crafted[-biases:] = mean[-biases:]
        return crafted.to(own.dtype).repeat(len(own), 1)
