"""Datasets by name: `available()`, `create(name, **params).load(seed)`; and how to share them out.

>>> from wardround import datasets
>>> data = datasets.create("synthetic", samples=200).load(seed=0)
>>> len(data.train), len(data.validation), len(data.test)
(140, 20, 40)
"""

from wardround.datasets.base import Dataset, DatasetSource, Split, Task, registry

__all__ = ["Dataset", "DatasetSource", "Split", "Task", "available", "create", "registry"]

available = registry.available
create = registry.create
