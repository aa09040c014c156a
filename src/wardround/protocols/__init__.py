"""The four papers as content: presets, hypotheses and published figures.

A paper is a package in here. Its `presets/` hold matrices; a `PAPER` in its `__init__.py` is what it adds to the
analysis of runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wardround.analysis.papers import Paper

__all__ = ["papers"]


def papers() -> list[Paper]:
    """Every paper that adds something to the analysis of runs, by the name of its package."""
    packages = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    modules = [importlib.import_module(f"{__name__}.{name}") for name in packages]
    return [module.PAPER for module in modules if hasattr(module, "PAPER")]
