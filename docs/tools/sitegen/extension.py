"""Two things Sphinx does not do by itself: formulas as MathML, without scripts, and the project's docstrings."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from importlib.resources import files
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

from sitegen.docstrings import as_rst

logger = logging.getLogger(__name__)
NAMESPACE = "http://www.w3.org/1998/Math/MathML"
REWRITTEN = {
    r"\\[Bb]igg?[lr]?\s*([(\[])": r"\\left\1",
    r"\\[Bb]igg?[lr]?\s*([)\]])": r"\\right\1",
    r"\\arg": r"\\mathrm{arg}\\,",
    r"\\operatorname\*?": r"\\mathrm",
}
ALPHABETS = re.compile(r'<mi mathvariant="(script|double-struck)">([A-Z])</mi>')


def mathml(formula: str, display: str) -> str:
    r"""LaTeX as MathML, which browsers draw themselves; rows and columns of an aligned formula as a table.

    >>> mathml("x^2", "inline").startswith("<math")
    True
    >>> mathml(r"a &= b \\ c &= d", "block").count("<mtr>")
    2
    """
    if "\\begin" in formula or not ("&" in formula or "\\\\" in formula):
        return f'<math xmlns="{NAMESPACE}" display="{display}">{_converted(formula, display)}</math>'
    rows = "".join(
        "<mtr>"
        + "".join(
            f'<mtd style="text-align: {"left" if column % 2 else "right"}">{_converted(cell, display)}</mtd>'
            for column, cell in enumerate(row.split("&"))
        )
        + "</mtr>"
        for row in formula.split("\\\\")
        if row.strip()
    )
    table = f'<mtable displaystyle="true">{rows}</mtable>'
    return f'<math xmlns="{NAMESPACE}" display="{display}">{table}</math>'


def _converted(formula: str, display: str) -> str:
    """The inside of one formula, rewritten where the converter or the browsers do not know a command."""
    for known, plain in REWRITTEN.items():
        formula = re.sub(known, plain, formula)
    inside = re.sub(r"^<math[^>]*>|</math>$", "", convert(formula.strip() or "{}", display=display))
    unknown = re.findall(r"<mi>(\\\w+)</mi>", inside)
    if unknown:
        logger.warning("no MathML for %s in %s", ", ".join(unknown), formula)
    return ALPHABETS.sub(_letter, inside)


def _letter(match: re.Match[str]) -> str:
    """Browsers have no script or double-struck style, but they have the letters themselves."""
    kind, letter = match[1].upper(), match[2]
    for name in (f"MATHEMATICAL {kind} CAPITAL {letter}", f"{kind} CAPITAL {letter}"):
        with suppress(KeyError):
            return f"<mi>{unicodedata.lookup(name)}</mi>"
    return match[0]


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(f'<span class="math">{mathml(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def _docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _add_font(app: Sphinx, exception: Exception | None) -> None:
    """Add a font with the measures that roots and large brackets need: few systems have one. Its licence allows it."""
    font = files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    if exception is None:
        (app.outdir / "_static" / "math.ttf").write_bytes(font.read_bytes())


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("build-finished", _add_font)
    app.connect(
        "autodoc-process-docstring", _docstring, priority=400
    )  # before napoleon reads Args and Returns
    return {"parallel_read_safe": True, "parallel_write_safe": True}
