"""The presets of this project itself (the demo, `caac-guard` and the red team), and what it says of its own rule."""

from collections.abc import Sequence

from wardround.analysis.measures import Measured
from wardround.analysis.papers import Paper

__all__ = ["PAPER"]

CAUTIONS = {
    "caac-guard": "What caac-guard was measured on, and which attackers it cannot tell from hospitals with other "
    "patients, is in docs/caac-guard.md: try attackers of your own on your own data before you rely on it."
}


def no_section(measured: Sequence[Measured]) -> None:
    """The project adds no verdicts of its own to an analysis."""


PAPER = Paper("wardround", no_section, cautions=CAUTIONS)
