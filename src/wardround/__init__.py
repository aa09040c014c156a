"""wardround: Byzantine-robust federated learning for healthcare.

>>> import wardround
>>> rule = wardround.aggregators.create("trimmed-mean", f=1)
>>> rule.aggregate(wardround.Updates([[1.0], [2.0], [3.0], [100.0]])).delta
tensor([2.5000])

`simulate` runs a whole federation in this process, on your own network and rows; `analyze` compares runs.

Names are imported on first use, so that `import wardround` and `wardround --help` stay instant while
torch takes its time only for those who compute.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from wardround import (
        aggregators,
        analysis,
        api,
        attacks,
        datasets,
        errors,
        experiments,
        faults,
        federation,
        flower,
        models,
        plugins,
        privacy,
        protocols,
        records,
        report,
        runs,
        training,
    )
    from wardround.api import analyze, simulate
    from wardround.errors import (
        ConfigError,
        ContractError,
        DataError,
        MissingExtra,
        ParameterError,
        PluginError,
        RenamedWarning,
        TooFewClients,
        WardroundError,
        WardroundWarning,
        WorkerDied,
    )
    from wardround.runs.folder import RunFolder
    from wardround.updates import Aggregation, Layout, Updates

__all__ = [
    "Aggregation",
    "ConfigError",
    "ContractError",
    "DataError",
    "Layout",
    "MissingExtra",
    "ParameterError",
    "PluginError",
    "RenamedWarning",
    "RunFolder",
    "TooFewClients",
    "Updates",
    "WardroundError",
    "WardroundWarning",
    "WorkerDied",
    "__version__",
    "aggregators",
    "analysis",
    "analyze",
    "api",
    "attacks",
    "datasets",
    "errors",
    "experiments",
    "faults",
    "federation",
    "flower",
    "models",
    "plugins",
    "privacy",
    "protocols",
    "records",
    "report",
    "runs",
    "simulate",
    "training",
]

_MODULES = {
    "Aggregation": "updates",
    "Layout": "updates",
    "RunFolder": "runs.folder",
    "Updates": "updates",
    "analyze": "api",
    "simulate": "api",
}
"""Where the classes and functions among these names are defined, other than in `errors`."""

if not TYPE_CHECKING:  # a type checker sees the imports above, and so finds a misspelt name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'wardround' has no attribute {name!r}")
        if not name[0].isupper() and name not in _MODULES:
            return importlib.import_module(f"wardround.{name}")
        return getattr(importlib.import_module(f"wardround.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
