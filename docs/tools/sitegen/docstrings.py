"""The project's docstrings as reStructuredText.

Docstrings hold plain text, `code`, lists, `.. math::`, sessions and Google's sections (`Args:`). Everything else that
reStructuredText would take for markup (|n|, *, a trailing underscore) is escaped.
"""

from __future__ import annotations

import inspect
import re

from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

SECTIONS = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
LITERAL = re.compile(r"(:\w+:`[^`]*`|``.+?``|`[^`\n]+`)")
UNCLOSED = re.compile(r":\w+:`[^`]*$")  # a role whose text continues in the next line
SPECIAL = re.compile(r"([*|]|(?<=\w)_(?!\w))")


def as_rst(lines: list[str]) -> list[str]:
    """The same text with everything escaped that is not meant as markup."""
    lines = GoogleDocstring(lines, SECTIONS).lines()
    written: list[str] = []
    directive: int | None = None  # indentation of the directive whose body we are in
    session = in_role = False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        if directive is not None and text and indent <= directive:
            directive = None
        if text.startswith(".. "):
            directive = indent
        session = bool(text) and (session or text.startswith(">>>"))
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if directive is not None or session:
            written.append(line)
            continue
        after_text = bool(written) and bool(written[-1].strip())
        if item and after_text and not re.match(r"\s*([-*]|\d+\.) ", written[-1]) and not _in_item(written):
            written.append("")  # a list needs a blank line before it
        start = item.end() if item else 0
        if in_role:
            start = line.find("`") + 1 or len(line)
        written.append(line[:start] + _escaped(line[start:]))
        in_role = bool(UNCLOSED.search(LITERAL.sub("", line[start:]))) or (in_role and "`" not in line)
    return written


def _in_item(written: list[str]) -> bool:
    """Does the last line belong to an item of a list?"""
    for line in reversed(written):
        if not line.strip():
            return False
        if re.match(r"\s*([-*]|\d+\.) ", line):
            return True
    return False


def _escaped(text: str) -> str:
    parts = LITERAL.split(text)
    unclosed = UNCLOSED.search(parts[-1])
    if unclosed:
        parts[-1:] = [parts[-1][: unclosed.start()], unclosed[0]]
    return "".join(part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def split_docstring(docstring: str | None) -> tuple[str, str]:
    """A member's docstring as reStructuredText: its description, and the session that is its example."""
    text = inspect.cleandoc(docstring or "")
    description, arrow, example = text.partition(">>> ")
    return "\n".join(as_rst(description.strip().splitlines())), arrow + example
