"""Faults by name: hospitals that are broken, not malicious. `available()`, `create(name, **params)`.

>>> import torch
>>> from wardround import faults
>>> from wardround.attacks import LocalData
>>> held = LocalData(torch.tensor([[1.0, 2.0]]), torch.tensor([0]), num_classes=2)
>>> faults.create("negated-features").spoil(held, torch.Generator()).inputs
tensor([[-1., -2.]])
"""

from wardround.faults.base import DataFault, Fault, Parameters, register, registry
from wardround.faults.broken_clients import BrokenClients, draw_broken

__all__ = [
    "BrokenClients",
    "DataFault",
    "Fault",
    "Parameters",
    "available",
    "create",
    "draw_broken",
    "register",
    "registry",
]

available = registry.available
create = registry.create
