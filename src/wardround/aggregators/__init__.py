"""Aggregation rules by name: `available()`, `create(name, **params)`.

>>> import torch
>>> from wardround import Updates, aggregators
>>> rule = aggregators.create("fedavg")
>>> rule.aggregate(Updates(torch.tensor([[1.0], [4.0]]), num_samples=[2, 1])).delta
tensor([2.])
"""

from wardround.aggregators.base import Aggregator, ClientPolicy, Context, registry

__all__ = ["Aggregator", "ClientPolicy", "Context", "available", "create", "registry"]

available = registry.available
create = registry.create
