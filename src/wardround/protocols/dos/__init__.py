"""DOS: its presets and published figures."""

from wardround.analysis.papers import Paper
from wardround.protocols.dos.published import RULE, section

__all__ = ["PAPER"]

PAPER = Paper("DOS", section, RULE)
