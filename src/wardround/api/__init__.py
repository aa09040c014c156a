"""wardround from Python: `wardround.simulate` and `wardround.analyze`, for scripts and notebooks."""

from wardround.api.analyses import RunsAnalysis, analyze
from wardround.api.simulations import Result, simulate
from wardround.api.tables import Records

__all__ = ["Records", "Result", "RunsAnalysis", "analyze", "simulate"]
