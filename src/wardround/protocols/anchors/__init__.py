"""Tables that others have published, as presets: what they printed stands in the preset, ours is put beside it."""

from collections.abc import Sequence

from wardround.analysis.measures import Measured
from wardround.analysis.papers import Paper, Section
from wardround.analysis.published import published_table, read_published
from wardround.experiments import presets

__all__ = ["PAPER", "section"]


def section(measured: Sequence[Measured]) -> Section | None:
    """Published figures beside ours, for every preset with such figures that some of the runs are called after."""
    tables = []
    for name in sorted({m.run.config["name"] for m in measured} & presets.available().keys()):
        if (published := read_published(*presets.load_matrix(name))) is not None:
            own = [m for m in measured if m.run.config["name"] == name]
            tables.append(published_table(published, own, f"published-{name}"))
    return Section("Published figures beside ours", tables=tuple(tables)) if tables else None


PAPER = Paper("anchors", section)
