"""Steps that transform the updates of a round before a rule sees them: `available()`, `create(name, **params)`.

A rule takes them as `pre`, in order:

>>> import torch
>>> from wardround import Updates, aggregators
>>> rule = aggregators.create("trimmed-mean", f=1, pre=[{"name": "clipping", "norm": 5}, "nnm"])
>>> rule.aggregate(Updates(torch.tensor([[1.0], [2.0], [4.0], [3.0], [900.0]]))).delta
tensor([2.8333])
"""

from wardround.aggregators.preaggregation.base import (
    Mixer,
    Mixture,
    PreAggregator,
    PreContext,
    RowStep,
    register,
    registry,
)

__all__ = [
    "Mixer",
    "Mixture",
    "PreAggregator",
    "PreContext",
    "RowStep",
    "available",
    "create",
    "register",
    "registry",
]

available = registry.available
create = registry.create
