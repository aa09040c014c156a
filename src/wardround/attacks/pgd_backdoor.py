"""PGD backdoor: a backdoored update that stays inside a ball around the global model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import Knowledge, register
from wardround.attacks.matrix_operations import norms_of
from wardround.attacks.model_replacement import within
from wardround.attacks.search_space import Range


@register("pgd-backdoor")
class PgdBackdoor(Backdoor):
    r"""Train on backdoored data, scale, and project onto a ball around the global model.

    .. math:: \tilde g = \Pi_{\delta}(\gamma\, g_{bd}), \qquad
        \Pi_\delta(g) = g \min(1, \delta / \|g\|), \qquad \delta = r\,\|w^t - w^{t-1}\|

    The paper projects after every few local steps as well; here it is the finished update that is projected. The
    radius is a multiple of the last global step, which every client can measure. In the first round there is no such
    step, and the update is sent as it is.

    H. Wang et al.: Attack of the Tails: Yes, You Really Can Backdoor Federated Learning, NeurIPS 2020.

    >>> import torch
    >>> from wardround import attacks
    >>> known = attacks.Knowledge(round=2, global_weights=torch.ones(4), previous_global_weights=torch.zeros(4))
    >>> attacks.create("pgd-backdoor", radius=1).craft(torch.full((1, 4), 9.0), known)
    tensor([[1., 1., 1., 1.]])
    """

    class Params(Backdoor.Params):
        boost: Annotated[float, Range(1, 50, log=True)] = Field(1.0, gt=0)
        """γ, before the projection."""
        radius: Annotated[float, Range(0.1, 20, log=True)] = Field(2.0, gt=0)
        """r: radius of the ball, as a multiple of the norm of the last global step."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        step = knowledge.last_global_update()
        if step is None:
            return own.clone()
        radius = self.params.radius * float(norms_of(step.reshape(1, -1)))
        return within(own * self.params.boost, radius)
