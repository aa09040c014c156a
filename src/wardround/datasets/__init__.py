"""Datasets by name: `available()`, `create(name, **params).load(seed)`; and how to share them out.

>>> from wardround import datasets
>>> data = datasets.create("synthetic", samples=200).load(seed=0)
>>> len(data.train), len(data.validation), len(data.test)
(140, 20, 40)

Names are imported on first use: the command line lists and prepares datasets without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Dataset", "DatasetSource", "Split", "Task", "available", "create", "registry"]

if TYPE_CHECKING:
    from wardround.datasets.base import Dataset, DatasetSource, Split, Task, registry

    available = registry.available
    create = registry.create


def __getattr__(name: str) -> Any:
    if name in ("available", "create"):
        return getattr(importlib.import_module("wardround.datasets.base").registry, name)
    if name in __all__:
        return getattr(importlib.import_module("wardround.datasets.base"), name)
    raise AttributeError(f"module 'wardround.datasets' has no attribute {name!r}")
