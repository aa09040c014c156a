r"""Formulas of docstrings as plain text: `\frac{m_i}{\sum_j m_j}` becomes mᵢ / Σⱼ mⱼ. Light to import."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

__all__ = ["plain_docstring", "plain_formula"]

GREEK = {
    name.rsplit(" ", 1)[1].lower(): chr(code)
    for code in range(0x3B1, 0x3CA)
    if (name := unicodedata.name(chr(code))) and "FINAL" not in name
} | {"lambda": "λ", "epsilon": "ε", "varepsilon": "ε", "varphi": "φ", "ell": "ℓ"}
SYMBOLS = {
    "sum": "Σ", "prod": "Π", "arg": "arg ", "in": "∈", "notin": "∉", "subset": "⊂", "cup": "∪", "cap": "∩",
    "setminus": "∖", "emptyset": "∅", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠",
    "approx": "≈", "sim": "∼", "propto": "∝", "ll": "≪", "gg": "≫", "cdot": "·", "times": "×", "odot": "⊙",
    "circ": "∘", "pm": "±", "mp": "∓", "to": "→", "rightarrow": "→", "leftarrow": "←", "mapsto": "↦",
    "Rightarrow": "⇒", "iff": "⇔", "infty": "∞", "partial": "∂", "nabla": "∇", "forall": "∀", "exists": "∃",
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩", "mid": "|", "vert": "|",
    "lvert": "|", "rvert": "|", "lVert": "‖", "rVert": "‖", "Vert": "‖", "|": "‖", "dots": "…", "ldots": "…",
    "cdots": "…", "top": "ᵀ", "prime": "′", "star": "*", "ast": "*", "quad": "   ", "qquad": "      ", "colon": ":",
    "wedge": "∧", "vee": "∨", "neg": "¬", "lnot": "¬", "land": "∧", "lor": "∨", "bot": "⊥", "perp": "⊥",
}  # fmt: skip
SIZES = {
    "big", "Big", "bigg", "Bigg", "left", "right", "bigl", "bigr", "Bigl", "Bigr", "middle", "limits", "displaystyle",
    "textstyle", "scriptstyle",
}  # fmt: skip
FONTS = {
    "text", "textbf", "texttt", "mathrm", "mathcal", "mathbf", "mathbb", "mathit", "mathsf", "boldsymbol",
    "operatorname",
}  # fmt: skip
MARKS = {"tilde": "\u0303", "hat": "\u0302", "bar": "\u0304", "vec": "\u20d7", "dot": "\u0307", "widehat": "\u0302",
         "widetilde": "\u0303", "overline": "\u0304"}  # fmt: skip
SUBSCRIPTS = dict(zip("0123456789+-=()aeijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
SUPERSCRIPTS = dict(zip("0123456789+-=()nijT*′", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱʲᵀ*′", strict=True))
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}_^&]|[^\\{}_^&]", re.DOTALL)
ENDS_A_TERM = {*"+-=,;.:)]}&|<>", *(f"\\{name}" for name in ("\\", "quad", "qquad", "le", "ge", "in", "to"))}
"""What follows a quotient that needs no brackets around it."""


def plain_docstring(text: str) -> str:
    """A docstring for people at a terminal: formulas as plain text, without its examples and marks of Sphinx."""
    lines: list[str] = []
    for line in _unwrapped_formulas(text.splitlines()):
        if line.lstrip().startswith(">>>"):
            break  # the examples, which come last
        lines.append(line)
    whole = re.sub(r":math:`([^`]*)`", lambda match: plain_formula(match.group(1)), "\n".join(lines))
    whole = re.sub(r"\n{3,}", "\n\n", whole)
    whole = re.sub(r":\w+:`~?\.?([^`]*)`", r"\1", whole)
    return whole.replace("``", "`").strip()


def _unwrapped_formulas(lines: list[str]) -> Iterator[str]:
    """Lines with each `.. math::` block replaced by its formula."""
    block: list[str] | None = None
    for line in [*lines, ""]:
        if block is not None and (line.startswith("    ") or (not line.strip() and not any(block))):
            block.append(line.strip())
            continue
        if block is not None:
            yield ""
            yield from (f"    {row}" for row in plain_formula(" ".join(block)).splitlines())
            block = None
        if line.startswith(".. math::"):
            block = [line.removeprefix(".. math::").strip()]
        else:
            yield line


def plain_formula(formula: str) -> str:
    r"""A LaTeX formula as text.

    >>> plain_formula(r"\beta_i = \frac{m_i}{\max(\nu, \|z - U_i\|)}")
    'βᵢ = mᵢ / max(ν, ‖z - Uᵢ‖)'
    """
    formula = re.sub(r":math:`|`", "", formula)
    formula = formula.replace(r"\begin{cases}", r"\\")
    formula = re.sub(r"\\(begin|end)\{(\w+)\*?\}(\{[lcr]*\})?", "", formula)
    text = _Reader(formula).read()
    rows = [re.sub(r" {4,}", "    ", row).strip() for row in text.split("\n")]
    return "\n".join(row for row in rows if row)


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, formula: str) -> None:
        self.tokens = TOKEN.findall(formula)
        self.place = 0

    def read(self, until: str | None = None) -> str:
        parts: list[str] = []
        while self.place < len(self.tokens):
            token = self._next()
            if token == until:
                break
            part = self._script(token) if token in "_^" else self._plain(token)
            is_word = token.startswith("\\") and len(part) > 1 and part.isalpha()
            if is_word and parts and parts[-1][-1:].isalnum():
                parts.append(" ")  # max after a letter
            parts.append(part)
        return "".join(parts)

    def _next(self) -> str:
        self.place += 1
        token: str = self.tokens[self.place - 1]
        return token

    def _argument(self) -> str:
        """The next group in braces, or the next sign."""
        while self.place < len(self.tokens) and self.tokens[self.place].isspace():
            self.place += 1
        if self.place >= len(self.tokens):
            return ""
        token = self._next()
        return self.read("}") if token == "{" else self._plain(token)

    def _plain(self, token: str) -> str:
        if token == "{":
            return self.read("}")
        if not token.startswith("\\"):
            return {"&": "", "~": " ", "\n": " "}.get(token, token)
        name = token[1:]
        commands: dict[str, Callable[[], str]] = {
            "frac": self._fraction, "tfrac": self._fraction, "dfrac": self._fraction, "sqrt": self._root,
            "\\": lambda: "\n", "underbrace": self._argument, "phantom": lambda: self._argument() and "",
        }  # fmt: skip
        if name in commands:
            return commands[name]()
        if name in MARKS:
            return unicodedata.normalize("NFC", _marked(self._argument(), MARKS[name]))
        if name in FONTS:
            return self._argument()
        if name in SIZES or name in (",", ";", "!", ":", " "):
            return " " if name in (";", " ", ",", ":") else ""
        if name.lower() in GREEK:
            letter = GREEK[name.lower()]
            return letter if name[0].islower() else letter.upper()
        return SYMBOLS.get(name, name)

    def _fraction(self) -> str:
        above, below = _grouped(self._argument().strip()), _grouped(self._argument().strip())
        quotient = f"{above}/{below}" if len(above) == len(below) == 1 else f"{above} / {below}"
        return quotient if self._ends_a_term() else f"({quotient})"

    def _ends_a_term(self) -> bool:
        """Is nothing multiplied to what was just read?"""
        ignored = {"\\,", "\\;", *(f"\\{size}" for size in SIZES)}
        rest = (token for token in self.tokens[self.place :] if not token.isspace() and token not in ignored)
        return next(rest, "}") in ENDS_A_TERM

    def _root(self) -> str:
        inside = self._argument().strip()
        return f"√{inside}" if len(inside) == 1 or inside.isalnum() else f"√({inside})"

    def _script(self, token: str) -> str:
        written = self._argument().strip()
        signs = SUBSCRIPTS if token == "_" else SUPERSCRIPTS
        is_word = len(written) > 2 and written.isalpha()
        if written and not is_word and all(sign in signs for sign in written):
            return "".join(signs[sign] for sign in written)
        return f"{token}{written}" if written.isalnum() else f"{token}({written})"


def _marked(letters: str, mark: str) -> str:
    """A letter with a mark above it."""
    return letters[:1] + mark + letters[1:]


def _grouped(part: str) -> str:
    """In brackets where a quotient needs them."""
    depth, bare = 0, ""
    for sign in part:
        depth += (sign in "([⌊" and 1) or -(sign in ")]⌋")
        bare += sign if depth == 0 else ""
    return f"({part})" if re.search(r"[+/ =-]", bare.strip().replace("Σ", "")) else part
