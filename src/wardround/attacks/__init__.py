"""Attacks by name: `available()`, `create(name, **params)`, and what an attacker may know.

>>> import torch
>>> from wardround import attacks
>>> attacks.create("sign-flip", scale=2).craft(torch.ones(1, 3), attacks.Knowledge(round=1))
tensor([[-2., -2., -2.]])
"""

from wardround.attacks.base import (
    Attack,
    DataAttack,
    Defence,
    HonestUpdate,
    Knowledge,
    KnowledgeLevel,
    LocalData,
    MetricsAttack,
    OutcomePart,
    Parameters,
    Range,
    describe,
    register,
    registry,
)
from wardround.attacks.campaign import Campaign, draw_byzantine

__all__ = [
    "Attack",
    "Campaign",
    "DataAttack",
    "Defence",
    "HonestUpdate",
    "Knowledge",
    "KnowledgeLevel",
    "LocalData",
    "MetricsAttack",
    "OutcomePart",
    "Parameters",
    "Range",
    "available",
    "create",
    "describe",
    "draw_byzantine",
    "register",
    "registry",
]

available = registry.available
create = registry.create
