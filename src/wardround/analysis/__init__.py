"""The analysis of runs: reads run folders, measures, compares, and makes tables and verdicts."""

from wardround.analysis.analyze import Analysis, analyze, write
from wardround.analysis.measures import MEASURES, Measured, measure_all
from wardround.analysis.papers import Paper, Section
from wardround.analysis.recommendation import Recommendation, recommend
from wardround.analysis.runs import Run, load_runs
from wardround.analysis.tables import Comparison, compare

__all__ = [
    "MEASURES",
    "Analysis",
    "Comparison",
    "Measured",
    "Paper",
    "Recommendation",
    "Run",
    "Section",
    "analyze",
    "compare",
    "load_runs",
    "measure_all",
    "recommend",
    "write",
]
