"""The report's figures as files for a paper: PNG, SVG and PDF, drawn by matplotlib.

The figures are the page's own descriptions. Only the few kinds of trace that they use are supported; an unknown
one is an error rather than a gap in the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wardround.errors import ConfigError, WardroundError, require
from wardround.report.figures import Figure

__all__ = ["FORMATS", "write_figures"]

FORMATS = ("png", "svg", "pdf")
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SYMBOLS = {"circle": "o", "diamond": "D", "square": "s", "triangle-up": "^"}
SIZE = (7.0, 3.6)  # inches: the width of a text column pair
BOX_WIDTH = 0.8
LEGEND_COLUMNS, LEGEND_LIMIT = 4, 24


def write_figures(
    figures: Iterable[Figure], folder: Path, formats: Iterable[str] = FORMATS, dpi: int = 200
) -> list[Path]:
    """Draw every figure into `folder`, one file per format; `dpi` is for PNG."""
    matplotlib = require("matplotlib", "figures")
    # Text stays text in SVG and PDF; a fixed salt and no date give the same bytes for the same runs.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "wardround", "pdf.fonttype": 42, "font.size": 9}
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(settings):
            for figure in figures:
                written += _draw(figure, folder, formats, dpi)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    return written


def _draw(figure: Figure, folder: Path, formats: Iterable[str], dpi: int) -> list[Path]:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.add_subplot()
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    axes.grid(color="#e3e8ec", linewidth=0.6)
    axes.set_axisbelow(True)
    kinds = {trace["type"] for trace in figure.data}
    if kinds == {"heatmap"}:
        _heatmap(canvas, axes, figure.data[0])
    elif kinds == {"box"}:
        _boxes(axes, figure.data)
    elif kinds == {"bar"}:
        _bars(axes, figure.data)
    elif kinds == {"scatter"}:
        _lines(axes, figure.data)
    elif kinds:
        raise WardroundError(f"figure {figure.key}: no way to draw {', '.join(sorted(kinds))} for a paper")
    _axes(axes, figure.layout)
    handles, _ = axes.get_legend_handles_labels()
    rows = math.ceil(min(len(handles), LEGEND_LIMIT) / LEGEND_COLUMNS)
    axes.set_title(figure.title, fontsize=9, loc="left", pad=6 + 13 * rows)  # above the legend
    if handles:
        axes.legend(
            handles=handles[:LEGEND_LIMIT], ncols=min(LEGEND_COLUMNS, len(handles)), fontsize=7, frameon=False,
            loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2,
        )  # fmt: skip
    paths = []
    for suffix in formats:
        path = folder / f"{figure.key}.{suffix}"
        metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
        canvas.savefig(path, format=suffix, dpi=dpi, metadata=metadata)
        paths.append(path)
    return paths


def _lines(axes: Any, traces: list[dict[str, Any]]) -> None:
    for trace in traces:
        line = trace.get("line", {})
        shown = trace.get("showlegend", True) and trace.get("name")
        if trace.get("fill") == "toself":
            axes.fill(trace["x"], trace["y"], color=trace["fillcolor"][:7], alpha=0.13, linewidth=0)
            continue
        if trace.get("mode") == "markers":
            _marks(axes, trace)
            continue
        axes.plot(
            trace["x"], trace["y"], color=line.get("color"), linewidth=0.7 * line.get("width", 2),
            linestyle=DASHES[line.get("dash", "solid")], label=trace["name"] if shown else None,
        )  # fmt: skip
        symbols = trace.get("marker", {}).get("symbol")
        if isinstance(symbols, list):
            flagged = [(x, y) for x, y, s in zip(trace["x"], trace["y"], symbols, strict=True) if s == "x"]
            if flagged:
                axes.plot(*zip(*flagged, strict=True), "x", color=line.get("color"), markersize=4)
        for x, y, text in zip(trace["x"], trace["y"], trace.get("text", ()), strict=False):
            if text:
                side = "left" if "right" in trace.get("textposition", "right") else "right"
                axes.annotate(
                    text, (x, y), (0, 2), textcoords="offset points", ha=side, va="bottom", fontsize=8
                )


def _marks(axes: Any, trace: dict[str, Any]) -> None:
    marker, reach = trace["marker"], trace["error_x"]
    axes.errorbar(
        trace["x"], trace["y"], xerr=[reach["arrayminus"], reach["array"]], fmt=SYMBOLS[marker["symbol"]],
        color=marker["color"], markersize=5, elinewidth=1, label=trace["name"],
    )  # fmt: skip


def _bars(axes: Any, traces: list[dict[str, Any]]) -> None:
    below = [0.0] * len(traces[0]["x"])
    for trace in traces:
        places = range(len(trace["x"]))
        axes.bar(
            places, trace["y"], bottom=below, color=trace["marker"]["color"], label=trace["name"], width=0.8
        )
        below = [a + b for a, b in zip(below, trace["y"], strict=True)]
    _categories(axes.xaxis, [label.replace("⚠", "*") for label in traces[0]["x"]])


def _boxes(axes: Any, traces: list[dict[str, Any]]) -> None:
    groups = list(dict.fromkeys(x for trace in traces for x in trace["x"]))
    width = BOX_WIDTH / len(traces)
    for number, trace in enumerate(traces):
        colour = trace["line"]["color"]
        shift = (number - (len(traces) - 1) / 2) * width
        label = trace["name"]
        for place, group in enumerate(groups):
            values = [y for x, y in zip(trace["x"], trace["y"], strict=True) if x == group and y is not None]
            if not values:
                continue
            axes.plot([place + shift] * len(values), values, "o", color=colour, markersize=2.5, label=label)
            label = None  # once in the legend
            if not trace["line"]["width"]:
                continue  # a single seed is a point, not a box
            drawn = axes.boxplot(
                values, positions=[place + shift], widths=0.8 * width, patch_artist=True, showfliers=False,
                medianprops={"color": colour}, manage_ticks=False,
            )  # fmt: skip
            for part in (*drawn["boxes"], *drawn["whiskers"], *drawn["caps"]):
                part.set_color(colour)
            for box in drawn["boxes"]:
                box.set(facecolor=colour, alpha=0.45)
    _categories(axes.xaxis, groups)


def _heatmap(canvas: Any, axes: Any, trace: dict[str, Any]) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    values = np.array([[np.nan if v is None else v for v in row] for row in trace["z"]], dtype=float)
    steps = trace["colorbar"].get("tickvals")
    colours = [(place, colour) for place, colour in trace["colorscale"]]
    scale: Any = (
        ListedColormap([colour for _, colour in colours[::2]])
        if steps
        else LinearSegmentedColormap.from_list("page", colours)
    )
    axes.grid(False)
    left = trace["x"][0] - 0.5 if steps else -0.5  # rounds have a number, categories a place
    extent = (left, left + len(trace["x"]), -0.5, len(trace["y"]) - 0.5)
    image = axes.imshow(
        values, cmap=scale, vmin=trace["zmin"], vmax=trace["zmax"], aspect="auto", origin="lower",
        interpolation="nearest", extent=extent,
    )  # fmt: skip
    bar = canvas.colorbar(image, ax=axes, ticks=steps)
    if steps:
        bar.ax.set_yticklabels(trace["colorbar"]["ticktext"], fontsize=7)
    else:
        bar.set_label(trace["colorbar"]["title"]["text"])
        _categories(axes.xaxis, trace["x"])
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                strong = abs(value) > 0.6 * trace["zmax"]
                colour = "white" if strong else "black"
                axes.text(
                    column,
                    row,
                    trace["text"][row][column],
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=colour,
                )
    _categories(axes.yaxis, [label.replace("⚠", "*") for label in trace["y"]])


def _categories(axis: Any, labels: list[str]) -> None:
    size = 7 if len(labels) > 12 or max(map(len, labels), default=0) > 18 else 8
    axis.set_ticks(range(len(labels)), labels, fontsize=size)


def _axes(axes: Any, layout: dict[str, Any]) -> None:
    for name, settings in (("x", layout.get("xaxis", {})), ("y", layout.get("yaxis", {}))):
        if title := settings.get("title", {}).get("text"):
            getattr(axes, f"set_{name}label")(title)
        if settings.get("type") == "log":
            getattr(axes, f"set_{name}scale")("log")
        if "ticktext" in settings:
            getattr(axes, f"set_{name}ticks")(settings["tickvals"], settings["ticktext"])
        if "range" in settings:
            getattr(axes, f"set_{name}lim")(*settings["range"])
        if settings.get("rangemode") == "tozero":
            getattr(axes, f"set_{name}lim")(0, None)
        if settings.get("visible") is False:
            getattr(axes, f"{name}axis").set_visible(False)
            axes.spines["left" if name == "y" else "bottom"].set_visible(False)
            axes.grid(False, axis=name)
    for shape in layout.get("shapes", ()):
        line = shape["line"]
        axes.axvline(
            shape["x0"], color=line["color"], linewidth=line["width"], linestyle=DASHES[line["dash"]]
        )
