"""FedBNP: its presets and its statistics."""

from wardround.analysis.papers import Paper
from wardround.protocols.fedbnp.statistics import section

__all__ = ["PAPER"]

PAPER = Paper("FedBNP", section)
