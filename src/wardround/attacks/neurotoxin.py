"""Neurotoxin: a backdoor in coordinates that honest clients hardly touch, so that they do not unlearn it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from wardround.attacks.backdoor import Backdoor
from wardround.attacks.base import Knowledge, register
from wardround.attacks.search_space import Range


@register("neurotoxin")
class Neurotoxin(Backdoor):
    r"""Train on backdoored data and send only the coordinates in which the global model moved least.

    .. math:: \tilde g_k = \gamma\, g_{bd,k} \text{ where } |w^t_k - w^{t-1}_k| \text{ is not among the largest }
        \lceil \kappa D \rceil, \quad 0 \text{ elsewhere}

    The paper projects every local gradient; here it is the finished update, which for plain SGD is the same. In the
    first round the server has not moved yet, and the whole update is sent.

    Z. Zhang et al.: Neurotoxin: Durable Backdoors in Federated Learning, ICML 2022.

    >>> import torch
    >>> from wardround import attacks
    >>> known = attacks.Knowledge(
    ...     round=2, global_weights=torch.tensor([9.0, 0.1, 0.2, 0.1]), previous_global_weights=torch.zeros(4)
    ... )
    >>> attacks.create("neurotoxin", top=0.25).craft(torch.ones(1, 4), known)
    tensor([[0., 1., 1., 1.]])
    """

    class Params(Backdoor.Params):
        top: Annotated[float, Range(0.01, 0.5)] = Field(0.05, ge=0, lt=1)
        """κ: share of the coordinates that are left to the honest clients."""
        boost: Annotated[float, Range(1, 50, log=True)] = Field(1.0, gt=0)
        """γ."""

    params: Params

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        rows = own * self.params.boost
        step = knowledge.last_global_update()
        count = -int(-self.params.top * own.shape[1] // 1)
        if step is not None and count:
            rows[:, step.reshape(-1).abs().topk(count).indices] = 0
        return rows
