"""FedBN: average everything but the normalisation layers, which stay where their data is."""

from __future__ import annotations

from wardround.aggregators.base import ClientPolicy, Context, register
from wardround.aggregators.fedavg import FedAvg
from wardround.updates import Aggregation, Updates


@register("fedbn")
class FedBn(FedAvg):
    r"""`fedavg` on all coordinates but those of BatchNorm layers, whose delta is zero.

    .. math:: \Delta_k = \sum_i m_i U_{ik} / \sum_i m_i \text{ for } k \notin \mathrm{BN}, \qquad
        \Delta_k = 0 \text{ for } k \in \mathrm{BN}

    Which coordinates are BatchNorm's (weight, bias and running statistics) is read from `updates.layout`;
    without a layout, or in a model without such layers, this is `fedavg`. The client policy asks the loop to
    leave these coordinates with each client.

    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

    >>> import torch
    >>> from wardround import Layout, Updates, aggregators
    >>> layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1)))
    >>> sent = Updates(torch.tensor([[1.0, 1, 1, 1, 1], [3.0, 3, 3, 3, 3]]), layout=layout)
    >>> aggregators.create("fedbn").aggregate(sent).delta
    tensor([2., 0., 0., 0., 0.])
    """

    sees = "rows"  # the weights follow from reports, but the result is no weighted sum of whole rows

    @property
    def client_policy(self) -> ClientPolicy:
        return ClientPolicy(local_batch_norm=True)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        result = super().combine(updates, context)
        if updates.layout is not None:
            result.delta[updates.layout.batch_norm_mask] = 0
        return result
