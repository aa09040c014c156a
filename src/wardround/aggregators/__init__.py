"""Aggregation rules by name: `available()`, `create(name, **params)`.

>>> import torch
>>> from wardround import Updates, aggregators
>>> rule = aggregators.create("fedavg")
>>> rule.aggregate(Updates(torch.tensor([[1.0], [4.0]]), num_samples=[2, 1])).delta
tensor([2.])
"""

from wardround.aggregators._math.kernels import centred_gram, row_dots, squared_distances, weighted_sum
from wardround.aggregators.base import (
    Aggregator,
    ByzantineBound,
    ClientPolicy,
    Context,
    Parameters,
    register,
    registry,
)

__all__ = [
    "Aggregator",
    "ByzantineBound",
    "ClientPolicy",
    "Context",
    "Parameters",
    "available",
    "centred_gram",
    "create",
    "register",
    "registry",
    "row_dots",
    "squared_distances",
    "weighted_sum",
]

available = registry.available
create = registry.create
