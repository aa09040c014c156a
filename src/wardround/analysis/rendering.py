"""Tables and numbers as text: one `Table`, rendered as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal

__all__ = ["Cell", "Table", "count", "difference", "fixed", "number", "percent", "plus_minus", "signed"]

GUARD_DIGITS = 6  # beyond those that are shown: farther ones are errors of floating-point sums
Cell = str | float | int | None
LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "Δ": r"$\Delta$", "α": r"$\alpha$", "±": r"$\pm$",
    "·": r"$\cdot$", "×": r"$\times$", "≥": r"$\ge$", "≤": r"$\le$", "−": "$-$", "–": "--", "∞": r"$\infty$",
    "τ": r"$\tau$", "λ": r"$\lambda$", "→": r"$\to$",
})  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with text columns first; numbers keep all digits in CSV and are rounded elsewhere."""

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)
    words: int = 1
    """How many leading columns hold words (the others are aligned right)."""

    def markdown(self) -> str:
        """As a GitHub table with title and notes."""
        rule = [":---" if i < self.words else "---:" for i in range(len(self.columns))]
        lines = [self.columns, rule, *([_shown(cell) for cell in row] for row in self.rows)]
        body = "\n".join("| " + " | ".join(_markdown(c) for c in line) + " |" for line in lines)
        notes = "".join(f"\n\n{note}" for note in self.notes)
        return f"### {self.title}\n\n{body}{notes}\n"

    def csv(self) -> str:
        """As CSV with all digits; cells without a value are empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if cell is None else cell for cell in row] for row in self.rows)
        return out.getvalue()

    def latex(self) -> str:
        """As a `table` environment with booktabs rules."""
        spec = "l" * self.words + "r" * (len(self.columns) - self.words)
        head = " & ".join(_latex(name) for name in self.columns)
        body = "\n".join(
            "    " + " & ".join(_latex(_shown(cell)) for cell in row) + r" \\" for row in self.rows
        )
        caption = _latex(" ".join([self.title.rstrip(".") + ".", *self.notes]))
        return (
            "\\begin{table}[t]\n  \\centering\n"
            f"  \\caption{{{caption}}}\n  \\label{{tab:{self.key}}}\n"
            f"  \\begin{{tabular}}{{{spec}}}\n    \\toprule\n    {head} \\\\\n    \\midrule\n{body}\n"
            "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
        )


def fixed(value: float, digits: int = 3) -> str:
    """A value with so many digits, the same on every page, in every table and on the terminal.

    A half is rounded away from zero, as people do, and the last bits of a sum do not decide: the mean of differences
    and the difference of means are one number to a reader. There is no minus zero.

    >>> fixed(0.0245), fixed(0.02449999999999997), fixed(-0.0004), f"{0.02449999999999997:.3f}"
    ('0.025', '0.025', '0.000', '0.024')
    """
    if not math.isfinite(value):
        return f"{value:.{digits}f}"
    exact = Decimal(repr(round(value, digits + GUARD_DIGITS)))
    shown = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return str(abs(shown)) if not shown else str(shown)


def signed(value: float, digits: int = 3) -> str:
    """As `fixed`, with a plus sign where there is no minus."""
    shown = fixed(value, digits)
    return shown if shown.startswith("-") else f"+{shown}"


def number(value: float | None, digits: int = 3) -> str | None:
    """A value rounded to `digits`; None stays None."""
    return None if value is None else fixed(value, digits)


def difference(value: float) -> str:
    """A difference of two metrics, rounded once, the same on every page and in every table.

    >>> difference(0.0245), difference(-0.0004), difference(-0.012)
    ('0.025', '0.000', '−0.012')
    """
    shown = fixed(abs(value))
    return f"−{shown}" if value < 0 and float(shown) else shown


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 run`, `2 runs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def percent(value: float | None) -> str | None:
    """A share as per cent with one digit; None stays None."""
    return None if value is None else f"{100 * value:.1f} %"


def plus_minus(mean: float | None, sd: float | None, digits: int = 3) -> str | None:
    """mean ± sd, as papers write it."""
    if mean is None:
        return None
    return fixed(mean, digits) + ("" if sd is None else f" ± {fixed(sd, digits)}")


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    return fixed(cell) if isinstance(cell, float) else str(cell)


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _latex(text: str) -> str:
    return text.translate(LATEX)
