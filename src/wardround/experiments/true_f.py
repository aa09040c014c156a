"""The number of attackers as `f` of the rules: a matrix whose runs differ in their attackers says `f: attackers`."""

from __future__ import annotations

import math
from typing import Any

from wardround import aggregators
from wardround.aggregators.preaggregation.base import registry as preaggregations
from wardround.errors import ConfigError
from wardround.runs.config import RunConfig, load_config
from wardround.runs.runner import build_campaign

__all__ = ["ATTACKERS", "count_attackers", "with_true_f"]

ATTACKERS = "attackers"


def with_true_f(config: RunConfig, where: str = "matrix") -> RunConfig:
    """The run with the number of its attackers as `f`, where its rule or a pre-aggregation has an `f` and none is said.

    A rule is given no more than it is sound for: of ten clients Krum withstands three (N ≥ 2f+3), however many attack.
    Where only some clients take part in a round, `f` is their share of the attackers, rounded up.
    """
    name, params = config.section("aggregator")
    pre = [dict(step) for step in params.get("pre") or ()]
    open_pre = [step for step in pre if "f" in preaggregations.keys(step["name"]) and step.get("f") is None]
    open_rule = "f" in params and params["f"] is None
    if not open_rule and not open_pre:
        return config
    clients = config.partition.get("clients")
    if not isinstance(clients, int):
        raise ConfigError(
            f"{where}: f: {ATTACKERS} wants partition.clients, the number of clients; partition "
            f"'{config.partition['name']}' has none: give aggregator.f"
        )
    in_round = math.ceil(config.participation * clients)
    attackers = math.ceil(count_attackers(config, clients) * config.participation)
    section: dict[str, Any] = {**config.aggregator}
    for step in open_pre:
        step["f"] = attackers
    if pre:
        section["pre"] = pre
    if open_rule:
        section["f"] = next(
            f for f in range(attackers, -1, -1) if not f or _is_sound(name, params, f, in_round)
        )
    return load_config({**config.plain(), "aggregator": section}, where)


def count_attackers(config: RunConfig, clients: int) -> int:
    """How many of so many clients attack in this run."""
    named = config.window().clients or ()
    return len(
        build_campaign(config, [*named, *(f"client-{i}" for i in range(clients - len(named)))]).byzantine
    )


def _is_sound(name: str, params: dict[str, Any], f: int, clients: int) -> bool:
    alone = {key: value for key, value in params.items() if key not in ("f", "pre")}
    return aggregators.create(name, f=f, **alone).minimum_clients(clients) <= clients
