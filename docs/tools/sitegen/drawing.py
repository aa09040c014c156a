"""How every picture of the site looks: inline SVG that takes the page's own text colour."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY = "#3d85c6", "#d98324", "#2f9e6e", "#d64550", "#8b929b"
INK = "#010203"  # stands for the page's text colour, in light and in dark
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "wardround",
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "axes.axisbelow": True,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
}
Panel = Callable[[Axes], None]
COLUMNS, PANEL_SIZE = 2, (3.6, 2.7)


def picture(panels: Sequence[Panel], description: str) -> str:
    """The panels, two in a row, as one inline SVG with a description for those who cannot see it."""
    rows = -(-len(panels) // COLUMNS)
    with matplotlib.rc_context(SETTINGS):
        width, height = COLUMNS * PANEL_SIZE[0], rows * PANEL_SIZE[1]
        figure = Figure(figsize=(width, height))
        # Margins by hand, in inches: a layout engine would draw everything three times.
        figure.subplots_adjust(
            left=0.6 / width, right=1 - 0.1 / width, bottom=0.45 / height, top=1 - 0.25 / height,
            wspace=0.65 / (PANEL_SIZE[0] - 0.65), hspace=0.72 / (PANEL_SIZE[1] - 0.72),
        )  # fmt: skip
        for place, panel in enumerate(panels, 1):
            panel(figure.add_subplot(rows, COLUMNS, place))
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', ' class="behaviour" role="img"', svg, count=1)
    svg = svg.replace(">", f"><title>{description}</title>", 1)
    return svg.replace(INK, "currentColor")
