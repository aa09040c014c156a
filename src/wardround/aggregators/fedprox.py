"""FedProx: plain averaging of clients that are held back from running away."""

from __future__ import annotations

from pydantic import Field

from wardround.aggregators.base import ClientPolicy, register
from wardround.aggregators.fedavg import FedAvg


@register("fedprox")
class FedProx(FedAvg):
    r"""`fedavg` on the server; clients add a proximal term to their loss.

    .. math:: \Delta = \sum_i m_i U_i / \sum_i m_i, \qquad
        \text{locally } \min_w\; F_i(w) + \tfrac{\mu}{2} \|w - w^t\|^2

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    >>> from wardround import aggregators
    >>> aggregators.create("fedprox", mu=0.1).client_policy.prox_mu
    0.1
    """

    class Params(FedAvg.Params):
        mu: float = Field(0.01, ge=0)
        """Strength of the proximal term."""

    params: Params

    @property
    def client_policy(self) -> ClientPolicy:
        return ClientPolicy(prox_mu=self.params.mu)
