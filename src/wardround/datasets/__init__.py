"""Datasets by name: `available()`, `create(name, **params).load(seed)`; and how to share them out.

>>> from wardround import datasets
>>> data = datasets.create("synthetic", samples=200).load(seed=0)
>>> len(data.train), len(data.validation), len(data.test)
(140, 20, 40)

Names are imported on first use: the command line lists and prepares datasets without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = [
    "Dataset", "DatasetSource", "Parameters", "Split", "Task", "available", "create", "partition", "register",
    "registry", "split_samples",
]  # fmt: skip

if TYPE_CHECKING:
    from wardround.datasets import partition
    from wardround.datasets.base import (
        Dataset,
        DatasetSource,
        Parameters,
        Split,
        Task,
        register,
        registry,
        split_samples,
    )

    available = registry.available
    create = registry.create

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'wardround.datasets' has no attribute {name!r}")
        if name == "partition":
            return importlib.import_module("wardround.datasets.partition")
        base = importlib.import_module("wardround.datasets.base")
        return getattr(base.registry if name in ("available", "create") else base, name)


def __dir__() -> list[str]:
    return __all__
