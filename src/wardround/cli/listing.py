"""What the house has: members of every registry, with parameters and defaults, for people and programs."""

from __future__ import annotations

import inspect
from typing import Any

from rich.table import Table

from wardround import aggregators, attacks, datasets, models
from wardround.datasets import partition
from wardround.experiments import presets
from wardround.registry import Registry

__all__ = ["listing", "listing_table"]

REGISTRIES: dict[str, Registry[Any]] = {
    "aggregators": aggregators.registry,
    "attacks": attacks.registry,
    "datasets": datasets.registry,
    "models": models.registry,
    "partitions": partition.registry,
}

FILES = {"presets": presets.available, "scenarios": presets.scenarios}


def listing(kind: str) -> list[dict[str, Any]]:
    """Name, one line of explanation, parameters with defaults, and what is particular to the kind."""
    if kind in FILES:
        return [{"name": name, "summary": summary} for name, summary in FILES[kind]().items()]
    registry = REGISTRIES[kind]
    return [_member(registry, name) for name in registry.available()]


def _member(registry: Registry[Any], name: str) -> dict[str, Any]:
    member = registry.get(name)
    doc = getattr(member, "summary", "") or (inspect.getdoc(member) or "").split("\n", 1)[0]
    about: dict[str, Any] = {"name": name, "summary": doc, "parameters": _plain(registry.describe(name))}
    if levels := getattr(member, "knowledge_levels", None):
        about["knowledge"] = [level.value for level in levels]
    for fact in ("task", "licence", "origin"):
        if value := getattr(member, fact, None):
            about[fact] = str(value)
    return about


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def listing_table(members: list[dict[str, Any]], kind: str) -> Table:
    """The same for people."""
    table = Table(title=kind, title_justify="left", show_lines=True)
    headings = [key for key in dict.fromkeys(key for member in members for key in member) if key != "origin"]
    for heading in headings:
        table.add_column(heading, no_wrap=heading == "name")
    for member in members:
        table.add_row(*(_text(member.get(heading)) for heading in headings))
    return table


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {'–' if inner is None else inner}" for key, inner in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value or "")
