"""Runs of earlier versions beside runs of this one: an option that a version did not have stood at its default."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from wardround.errors import WardroundError
from wardround.runs.config import SECTIONS, load_config

__all__ = ["fill_in_defaults"]

PLAIN_SECTIONS = ("training", "preprocessing", "root", "server")
"""Of the same options in every run, whatever its members are."""


def fill_in_defaults(configs: Sequence[dict[str, Any]]) -> None:
    """Give every configuration the options that others with the same member have, at their defaults.

    Without it a new option would make two settings, or two rules, of one. What nobody knows any more (a plug-in that is
    not loaded) stays as it was written.
    """
    for section in (*PLAIN_SECTIONS, *SECTIONS):
        members: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        is_known = section in PLAIN_SECTIONS and any(section in config for config in configs)
        for config in configs:
            if is_known:
                config.setdefault(section, {})  # a version that lacks the section lacks all its options
            if isinstance(config.get(section), Mapping):
                members[config[section].get("name")].append(config)
        for name, of_member in members.items():
            options = {key for config in of_member for key in config[section]}
            lacking = [config for config in of_member if options - config[section].keys()]
            defaults = _defaults(section, name) if lacking else {}
            for config in lacking:
                known = {key: defaults[key] for key in sorted(options) if key in defaults}
                config[section] = {**known, **config[section]}


def _defaults(section: str, name: Any) -> Mapping[str, Any]:
    """Option → default of a section with this member; empty where nobody knows the member."""
    if section in PLAIN_SECTIONS:
        defaults: Mapping[str, Any] = load_config({}).plain()[section]
        return defaults
    if not isinstance(name, str):
        return {}
    try:
        own = SECTIONS[section][0].describe(name)
    except WardroundError:
        return {}
    # As a configuration that was written and read has them.
    return {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}
