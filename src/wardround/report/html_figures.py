"""Places of figures on the page; the page's script draws into them."""

from __future__ import annotations

import html

from wardround.report.figures import Figure

__all__ = ["plot", "section"]


def plot(figure: Figure) -> str:
    """A figure with its caption."""
    height = f' style="height: {figure.layout["height"]}px"' if "height" in figure.layout else ""
    return (
        f'<figure><div class="plot" id="{figure.key}" role="img" aria-label="{html.escape(figure.title)}"{height}>'
        f"</div><figcaption>{html.escape(figure.caption)}</figcaption></figure>"
    )


def section(figure: Figure) -> str:
    """A figure below a heading of its own."""
    return f"<section><h2>{html.escape(figure.title)}</h2>{plot(figure)}</section>"
