"""Run folders in, tables out."""

from wardround.analysis.runs import Run, load_runs
from wardround.analysis.tables import Comparison, compare

__all__ = ["Comparison", "Run", "compare", "load_runs"]
