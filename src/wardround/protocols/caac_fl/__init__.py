"""CAAC-FL: its protocol, hypotheses and presets."""

from wardround.analysis.papers import Paper
from wardround.protocols.caac_fl.hypotheses import RULE, section

__all__ = ["PAPER"]

PAPER = Paper("CAAC-FL", section, RULE)
