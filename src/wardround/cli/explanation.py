"""`wardround list KIND NAME`: one member, explained in plain text. Light to import."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import Any

from wardround.cli.plain_math import plain_docstring

__all__ = ["explanation"]

WIDTH = 100


def explanation(about: dict[str, Any], member: type) -> str:
    """A member as text: what it does, its formula, its parameters with defaults and meaning.

    Args:
        about: The member as `wardround list` has it.
        member: Its class.
    """
    parts = [str(about["name"]), plain_docstring(inspect.getdoc(member) or "")]
    summary = about.get("summary")
    if summary and summary not in (inspect.getdoc(member) or ""):
        parts.insert(1, summary)
    if about.get("parameters"):
        meanings = parameter_meanings(member)
        lines = [_parameter(key, value, meanings.get(key)) for key, value in about["parameters"].items()]
        parts.append("\n".join(["Parameters and defaults:", *lines]))
    facts = {
        "knowledge": "What it can be given to know",
        "task": "Task",
        "licence": "Licence",
        "origin": "From",
        "extra": "Needs",
    }
    lines = []
    for key, words in facts.items():
        if value := about.get(key):
            shown = ", ".join(value) if isinstance(value, list) else value
            shown = f"pip install 'wardround[{value}]'" if key == "extra" else shown
            lines.append(f"{words}: {shown}")
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part)


def _parameter(key: str, default: Any, meaning: str | None) -> str:
    said = "–" if default is None else default
    head = f"  {key} = {said}"
    if not meaning:
        return head
    body = textwrap.fill(plain_docstring(meaning), WIDTH, initial_indent="      ", subsequent_indent="      ")
    return f"{head}\n{body}"


def parameter_meanings(member: type) -> dict[str, str]:
    """Parameter → the docstring below it, from the source of the class and of those it is derived from."""
    meanings: dict[str, str] = {}
    for one in reversed(getattr(member, "Params", member).__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        except (OSError, TypeError, SyntaxError):  # made at run time, or built in
            continue
        body = getattr(tree.body[0], "body", [])
        for field, below in itertools.pairwise(body):
            text = getattr(getattr(below, "value", None), "value", None)
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, str)
            ):
                meanings[field.target.id] = inspect.cleandoc(text)
    return meanings
