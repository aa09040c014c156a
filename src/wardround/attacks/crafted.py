"""The DOS paper's crafted model: step back from where the global model is going."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, register
from wardround.attacks.disguise import DisguiseParams, disguised
from wardround.attacks.search_space import Range


@register("crafted")
class Crafted(Attack):
    r"""Send parameters that undo the sign of the global model's last step.

    .. math:: \tilde\theta = w - \lambda\,\mathrm{sign}(w - w_{prev}), \qquad
        \tilde g = -\lambda\,\mathrm{sign}(w - w_{prev})

    The form of Fang's Krum attack with a fixed λ, for attackers who do not know the rule. In the first
    round there is no last step yet: the client stays honest.

    Alkhunaizi et al., MICCAI 2022, section 4.3 (Crafted 40 %), after Fang et al. 2020.

    >>> import torch
    >>> from wardround import attacks
    >>> w, w_prev = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 2.0, 1.0])
    >>> attacks.create("crafted").craft(torch.ones(1, 3), attacks.Knowledge(2, w, w_prev))
    tensor([[-0.1000,  0.1000, -0.0000]])
    """

    class Params(DisguiseParams):
        lambda_step: Annotated[float, Range(0.001, 1, log=True)] = Field(0.1, gt=0)
        """λ, the step per coordinate."""

    params: Params

    @disguised
    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        step = knowledge.last_global_update()
        if step is None:
            return own.clone()
        return torch.sign(step).to(own.dtype).mul_(-self.params.lambda_step).repeat(len(own), 1)
