"""wardround: Byzantine-robust federated learning for healthcare.

Names are imported on first use, so that `import wardround` and `wardround --help` stay instant while
torch takes its time only for those who compute.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Aggregation", "Layout", "Updates", "__version__", "aggregators", "attacks"]

if TYPE_CHECKING:
    from wardround import aggregators, attacks
    from wardround.updates import Aggregation, Layout, Updates

_HOME = {"Aggregation": "updates", "Layout": "updates", "Updates": "updates"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"wardround.{_HOME[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"wardround.{name}")
    raise AttributeError(f"module 'wardround' has no attribute {name!r}")
