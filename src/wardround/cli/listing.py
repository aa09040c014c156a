"""`wardround list`: the members of every registry, with parameters and defaults. Light to import."""

from __future__ import annotations

import inspect
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli.options import AsJson
from wardround.cli.plain_math import plain_docstring
from wardround.cli.plugins import PluginOption, load_plugins
from wardround.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table

    from wardround.registry import Registry

__all__ = ["listing", "listing_table", "mount"]


class Kind(StrEnum):
    """What can be listed."""

    AGGREGATORS = "aggregators"
    ATTACKS = "attacks"
    DATASETS = "datasets"
    FAULTS = "faults"
    MODELS = "models"
    PARTITIONS = "partitions"
    PREAGGREGATIONS = "preaggregations"
    PRESETS = "presets"
    SCENARIOS = "scenarios"


def mount(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("list")(list_members)


def list_members(
    kind: Annotated[Kind, typer.Argument()],
    name: Annotated[str | None, typer.Argument(help="One of them, to have it explained.")] = None,
    plugin: PluginOption = None,
    as_json: AsJson = False,
) -> None:
    """List rules, attacks, datasets and the like with their parameters and defaults, or explain one of them."""
    from wardround.cli.console import console
    from wardround.cli.explanation import explanation

    load_plugins(plugin)
    members = listing(kind.value)
    if name is not None:
        members = _only(members, name, kind.value, registries().get(kind.value))
        if not as_json:
            registry = registries().get(kind.value)
            if registry is not None:
                print(explanation(members[0], registry.get(name)))
            else:
                print(f"{name}\n\n{members[0]['summary']}")
                if kind is Kind.PRESETS:
                    print(f"\nwardround preset show {name} prints it.")
            return
    if as_json:
        print(json.dumps(members))
    else:
        console.print(listing_table(members, kind.value))


def listing(kind: str) -> list[dict[str, Any]]:
    """All members of a kind: name, one line of explanation, parameters with defaults, and what is particular to it."""
    from wardround.experiments import presets

    files = {"presets": presets.available, "scenarios": presets.scenarios}
    if kind in files:
        return [{"name": name, "summary": summary} for name, summary in files[kind]().items()]
    registry = registries()[kind]
    return [_member(registry, name) for name in registry.available()]


def registries() -> dict[str, Registry[Any]]:
    """The registries by what their members are called in a listing."""
    from wardround import aggregators, attacks, datasets, faults, models
    from wardround.aggregators import preaggregation
    from wardround.datasets import partition

    return {
        "aggregators": aggregators.registry,
        "attacks": attacks.registry,
        "datasets": datasets.registry,
        "faults": faults.registry,
        "models": models.registry,
        "partitions": partition.registry,
        "preaggregations": preaggregation.registry,
    }


def _only(
    members: list[dict[str, Any]], name: str, kind: str, registry: Registry[Any] | None
) -> list[dict[str, Any]]:
    names = [member["name"] for member in members]
    if registry is not None and name in registry and name not in names:  # known, though nothing to choose
        return [_member(registry, name)]
    if name not in names:
        raise ConfigError(f"no '{name}' among the {kind}; {did_you_mean(name, names)}")
    return [members[names.index(name)]]


def _member(registry: Registry[Any], name: str) -> dict[str, Any]:
    member = registry.get(name)
    doc = getattr(member, "summary", "") or plain_docstring((inspect.getdoc(member) or "").split("\n", 1)[0])
    about: dict[str, Any] = {"name": name, "summary": doc, "parameters": _plain(registry.describe(name))}
    if levels := getattr(member, "knowledge_levels", None):
        about["knowledge"] = [level.value for level in levels]
    for fact in ("task", "extra", "licence", "origin"):
        if value := getattr(member, fact, None):
            about[fact] = str(value)
    return about


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def listing_table(members: list[dict[str, Any]], kind: str) -> Table:
    """The members as a table for the terminal."""
    from rich.table import Table

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
