"""The red team: a search for the attack that hurts a rule most, and its results."""

from wardround.experiments.redteam.plan import Plan
from wardround.experiments.redteam.results import Findings, Tried, read_findings
from wardround.experiments.redteam.search import search

__all__ = ["Findings", "Plan", "Tried", "read_findings", "search"]
