"""The presets of this project itself (the demo, `caac-guard` and the red team), and what it says of its own rule."""

from collections.abc import Sequence

from wardround.analysis.measures import Measured
from wardround.analysis.papers import Paper

__all__ = ["PAPER"]

CAUTIONS = {
    "caac-guard": "But caac-guard was the worst of thirteen rules on other data and against attackers that it was not "
    "developed on (docs/caac-guard.md): try such attackers on your own data before you rely on it."
}


def no_section(measured: Sequence[Measured]) -> None:
    """The project adds no verdicts of its own to an analysis."""


PAPER = Paper("wardround", no_section, cautions=CAUTIONS)
